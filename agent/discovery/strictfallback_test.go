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

// twoPorts has a Sidecar that listens on two ports for an application.
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

// plain returns the listeners that accept plain text, of a proxy with an identity.
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
		if err := proto.Unmarshal(r.EncodedMessage(), &listener); err != nil {
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

// TestStrict_StaysWhenItsFileIsInvalid makes the file of a PeerAuthentication invalid: its mode
// STRICT stays in force. It then renames the invalid file, which has no last good version under its
// new name: everything is denied.
func TestStrict_StaysWhenItsFileIsInvalid(t *testing.T) {
	l := newRuns(t)
	l.put("", "")
	l.put("mesh.yaml", fmt.Sprintf(twoPorts, "HTTP"))
	l.put("strict.yaml", strict)
	l.next()
	l.put("strict.yaml", strict+"a: [")
	for _, when := range []string{"invalid", "the next server"} {
		if got := l.plain(); got != "" {
			t.Errorf("%s: plain text is accepted by %s", when, got)
		}
		l.reported(when, "not valid YAML")
		l.next()
	}
	must(t, os.Remove(filepath.Join(l.objects, "strict.yaml")))
	write(t, filepath.Join(l.objects, "renamed.yaml"), strict+"a: [")
	l.changes <- []string{l.objects}
	l.changes <- nil
	for _, when := range []string{"renamed", "the next server"} {
		if !l.denied() {
			t.Errorf("%s: requests are admitted", when)
		}
		l.reported(when, "every request to all workloads is denied")
		l.next()
	}
	l.put("renamed.yaml", strict)
	if got := l.plain(); got != "" || l.denied() {
		t.Errorf("corrected: plain text is accepted by %s, everything is denied: %v", got, l.denied())
	}
	l.reported("corrected")
}

// denied reports whether both listeners deny every request.
func (l *runs) denied() bool {
	snapshot, _ := feedOf(l.t, l.server, "sidecar identity").Current()
	denied := 0
	for _, r := range snapshot.ByType(resource.ListenerType) {
		if strings.Contains(string(r.EncodedMessage()), "(unreadable ") {
			denied++
		}
	}
	return denied == 2
}
