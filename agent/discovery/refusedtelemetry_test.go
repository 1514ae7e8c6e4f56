package discovery_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"outrider.org/outrider/agent/resource"
)

// counted returns a Telemetry with an expression for a label of Istio's metrics.
func counted(expression string) string {
	return fmt.Sprintf("---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\n"+
		"metadata: {name: count, namespace: shop}\nspec:\n  metrics:\n"+
		"  - providers: [{name: prometheus}]\n    overrides: [{tagOverrides: {x: {value: %s}}}]\n",
		expression)
}

// TestRefusal_BadTelemetryHoldsBackNoPolicy: Envoy refuses a new Telemetry, and in the same or a
// later edit, a PeerAuthentication makes the listener STRICT. Nevertheless mutual TLS is in force
// for the running proxy, for a new epoch, after a reload, and after a restart of the agent.
func TestRefusal_BadTelemetryHoldsBackNoPolicy(t *testing.T) {
	badLog, badTag := "---\n"+fmt.Sprintf(logged, "'bad(1)'"), counted("'bad(1)'")
	for name, test := range map[string]struct{ object, second, third string }{
		"a log, in one edit":    {"Telemetry shop/log", strict + badLog, ""},
		"a log, in two edits":   {"Telemetry shop/log", badLog, badLog + strict},
		"a label, in two edits": {"Telemetry shop/count", badTag, badTag + strict},
	} {
		t.Run(name, func(t *testing.T) {
			l := newRuns(t)
			ports := fmt.Sprintf(twoPorts, "HTTP")
			l.put("", "accessLogFile: /dev/stdout\n")
			l.put("mesh.yaml", ports)
			l.next()
			refuses := func(r *resource.Resource) bool {
				return r.Type == resource.ListenerType && strings.Contains(string(r.EncodedMessage()), "bad")
			}
			f := serveFleet(t, l.server)
			p := f.connect(identityNode(40), refuses)
			eventually(t, "the first listener", func() (bool, string) {
				r := p.get(resource.ListenerType, inboundListener)
				return r != nil && plain(t, r), ""
			})
			problem := test.object + ": Envoy refused the Listener " + inboundListener +
				" and 1 more, in use without"
			l.put("mesh.yaml", ports+test.second)
			if test.third != "" {
				l.reported("the bad Telemetry", problem)
				l.put("mesh.yaml", ports+test.third)
			}
			strictly := func(what string, p *proxy) {
				t.Helper()
				eventually(t, what, func() (bool, string) {
					r := p.get(resource.ListenerType, inboundListener)
					if r == nil || plain(t, r) {
						return false, fmt.Sprint("plain text; ", l.server.Problems())
					}
					return strings.Contains(string(r.EncodedMessage()), "/dev/stdout"), "no access log"
				})
				l.reported(what, problem)
				if why := l.server.ResourcesWithheldReason(); why != "" {
					t.Errorf("%s: not ready: %s", what, why)
				}
			}
			strictly("the running proxy", p)
			fresh := f.connect(identityNode(40), refuses)
			strictly("a new epoch", fresh)
			if fresh.refused() > 0 {
				t.Error("a new epoch gets what was refused")
			}
			before := p.refused()
			must(t, l.server.Reload(l.settings()))
			eventually(t, "it is tried again", func() (bool, string) {
				return p.refused()+fresh.refused() > before, ""
			})
			strictly("after a reload", p)
			l.next()
			strictly("the next agent", serveFleet(t, l.server).connect(identityNode(40), refuses))
			l.put("mesh.yaml", ports+strings.ReplaceAll(cmp.Or(test.third, test.second), "bad(1)", "true"))
			l.reported("corrected")
		})
	}
}
