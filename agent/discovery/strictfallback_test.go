package discovery_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// twoPorts is a Sidecar that listens on two ports for an application.
const twoPorts = `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  ingress:
  - {port: {number: 8081, protocol: %s, name: one}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:9081"}
  - {port: {number: 8082, protocol: HTTP, name: two}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:9082"}
`

const strict = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
`

// plain returns the listeners of a proxy with an identity that accept plain text.
func (l *runs) plain() string {
	l.t.Helper()
	snapshot, _ := feedOf(l.t, l.server, "sidecar identity").Current()
	var all []string
	for _, name := range []string{"127.0.0.1_8081", "127.0.0.1_8082"} {
		var listener listenerv3.Listener
		r := snapshot.Get(resource.Key{Type: resource.ListenerType, Name: name})
		if r == nil {
			l.t.Fatalf("no listener %s", name)
		}
		if err := proto.Unmarshal(r.Value(), &listener); err != nil {
			l.t.Fatal(err)
		}
		for _, chain := range listener.FilterChains {
			if chain.TransportSocket == nil {
				all = append(all, name)
				break
			}
		}
	}
	return strings.Join(all, " ")
}

// refuseListener refuses the listener of port 8081, for a proxy with another version.
func (l *runs) refuseListener() (unresolved []string) {
	l.t.Helper()
	const name = "127.0.0.1_8081"
	snapshot, _ := feedOf(l.t, l.server, "sidecar identity").Current()
	r := snapshot.Get(resource.Key{Type: resource.ListenerType, Name: name})
	unresolved, _ = l.server.Refused(resource.ListenerType, []discovery.RefusedResource{{Name: name,
		Version: r.Version, Held: true}}, errors.New("cannot bind"))
	return unresolved
}

// TestFallback_NeverRevertsPeerAuthentication has Envoy refuse a listener that became STRICT.
func TestFallback_NeverRevertsPeerAuthentication(t *testing.T) {
	for name, test := range map[string]struct {
		protocol   string // of a port of the changed Sidecar
		unresolved int
		problem    string
	}{
		"with a Sidecar": {"TCP", 0, "mesh.yaml:1: Sidecar shop/default: Envoy refused the Listener"},
		"alone":          {"HTTP", 1, "PeerAuthentication shop/default: Envoy refused the Listener"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newRuns(t)
			l.put("", "")
			l.put("mesh.yaml", fmt.Sprintf(twoPorts, "HTTP"))
			l.next()
			if got := l.plain(); got != "127.0.0.1_8081 127.0.0.1_8082" {
				t.Fatalf("plain text at first: %q", got)
			}
			l.put("mesh.yaml", fmt.Sprintf(twoPorts, test.protocol)+strict)
			if got := l.refuseListener(); len(got) != test.unresolved {
				t.Errorf("unresolved: %q", got)
			}
			l.reported("after the refusal", test.problem)
			if why := l.server.Closed(); strings.Contains(why, "policy may not be in force") !=
				(test.unresolved > 0) {
				t.Errorf("not ready: %q", why)
			}
			for _, when := range []string{"after the refusal", "the next server"} {
				if got := l.plain(); got != "" {
					t.Errorf("%s: plain text is accepted by %s", when, got)
				}
				l.next()
			}
		})
	}
}

// TestFallback_StoredRefusalOfPeerAuthentication starts with a file in which it was reverted.
func TestFallback_StoredRefusalOfPeerAuthentication(t *testing.T) {
	l := newRuns(t)
	l.put("", "")
	l.put("mesh.yaml", fmt.Sprintf(twoPorts, "HTTP")+strict)
	policy := &object.Object{Key: object.Key{Kind: object.PeerAuthentication, Namespace: "shop",
		Name: "default"}, APIVersion: "security.istio.io/v1", Line: 9,
		File: filepath.Join(l.objects, "mesh.yaml"),
		Spec: &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{
			Mode: security.PeerAuthentication_MutualTLS_STRICT}}}
	must(t, lastgood.Write(l.lastGood, lastgood.State{Refused: []lastgood.Refused{
		{Version: policy, Message: "cannot bind"}}}))
	l.next()
	if got := l.plain(); got != "" {
		t.Errorf("plain text is accepted by %s", got)
	}
	l.reported("with the stored refusal")
	l.persists(false)
}

// TestFallback_NeverRevertsMutualTLSOfMeshConfig has Envoy refuse a cluster when meshMTLS changed,
// too.
func TestFallback_NeverRevertsMutualTLSOfMeshConfig(t *testing.T) {
	l := newRuns(t)
	l.put("", "connectTimeout: 1s")
	l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	l.next()
	feedOf(t, l.server, "sidecar")
	l.put("", "connectTimeout: 2s\nmeshMTLS: {minProtocolVersion: TLSV1_3}")
	if got := l.refuse(resource.ClusterType, clusterOfA, "bad"); len(got) != 1 {
		t.Errorf("unresolved: %q", got)
	}
	l.serves("after the refusal", "2s", "Envoy refused the Cluster "+clusterOfA)
	l.next()
	l.serves("the next server", "2s")
}

// TestStrict_StaysWhenItsFileIsInvalid breaks the syntax of a PeerAuthentication's file, which it
// also renames, and starts without a last good state.
func TestStrict_StaysWhenItsFileIsInvalid(t *testing.T) {
	l := newRuns(t)
	l.put("", "")
	l.put("mesh.yaml", fmt.Sprintf(twoPorts, "HTTP"))
	l.put("strict.yaml", strict)
	l.next()
	must(t, os.Remove(filepath.Join(l.objects, "strict.yaml")))
	write(t, filepath.Join(l.objects, "renamed.yaml"), strict+"a: [")
	l.changes <- []string{l.objects}
	l.changes <- nil
	const problem = "as it may restrict access, no change of the mesh configuration takes effect"
	for _, when := range []string{"renamed", "the next server"} {
		if got := l.plain(); got != "" {
			t.Errorf("%s: plain text is accepted by %s", when, got)
		}
		l.reported(when, problem)
		l.next()
	}
	l.end()
	must(t, os.Remove(l.lastGood))
	l.next()
	if why := l.server.Closed(); !strings.Contains(why, problem) {
		t.Errorf("closed without a last good state: %q", why)
	}
	l.put("renamed.yaml", strict)
	if got := l.plain(); got != "" {
		t.Errorf("corrected: plain text is accepted by %s", got)
	}
	l.reported("corrected")
}
