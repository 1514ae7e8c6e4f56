package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

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
