package discovery_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"outrider.org/outrider/agent/resource"
)

// TestRefusal_ObjectsThatAnOlderAgentReverted starts with the last-good file of an older version of
// the agent, which replaced refused objects by earlier versions (reverted them): here a
// DestinationRule and MeshConfig. The earlier versions stay in force until a reload. After the
// reload, Envoy refuses the resources of the newest versions and retains the previous resources.
func TestRefusal_ObjectsThatAnOlderAgentReverted(t *testing.T) {
	l := newRuns(t)
	l.put("", "connectTimeout: 7s\n")
	l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1")+"---\n"+
		fmt.Sprintf(webEntry, "b", "10.0.0.2"))
	l.put("rule.yaml", rule("3s"))
	stored, err := os.ReadFile("testdata/upgrade/mesh-last-good.json")
	must(t, err)
	write(t, l.lastGood, strings.ReplaceAll(string(stored), "DIR", l.objects))
	const clusterOfB = "outbound|80||b.test"
	refuses := func(r *resource.Resource) bool {
		return r.Name == clusterOfA && timeoutOf(t, r) == "3s" ||
			r.Name == clusterOfB && timeoutOf(t, r) == "7s"
	}
	has := func(what string, p *proxy) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			a, b := timeoutOf(t, p.get(resource.ClusterType, clusterOfA)),
				timeoutOf(t, p.get(resource.ClusterType, clusterOfB))
			return a == "2s" && b == "1s", fmt.Sprintf("a %q, b %q", a, b)
		})
	}
	problems := []string{"mesh.yml:1: Envoy refused the Cluster outbound|80||b.test",
		"rule.yaml:4: DestinationRule shop/a: spec: Envoy refused the Cluster"}
	n := node("sidecar", "shop", map[string]any{"app": "edge"})
	changes := 0
	// the server sends the next clusters after it has processed the ACK of those before
	nextArrives := func(when string, p *proxy) {
		t.Helper()
		changes++
		next := fmt.Sprint("next", changes)
		l.put(next+".yaml", fmt.Sprintf(webEntry, next, "10.0.0.3"))
		eventually(t, "the next change arrives", func() (bool, string) {
			return p.get(resource.ClusterType, "outbound|80||"+next+".test") != nil, when
		})
	}
	for _, when := range []string{"after the upgrade", "after another restart"} {
		l.next()
		p := serveFleet(t, l.server).connect(n, refuses)
		has(when, p)
		// the agent applies its settings at the start, perhaps after Envoy has connected
		must(t, l.server.Configure(l.settings()))
		l.reported(when, problems[1], problems[0])
		nextArrives(when, p)
		if p.refused() > 0 {
			t.Errorf("%s: what was refused is sent", when)
		}
	}
	l.next()
	f := serveFleet(t, l.server)
	p := f.connect(n, refuses)
	has("before a reload", p)
	nextArrives("before a reload", p)
	must(t, l.server.Reload(l.settings()))
	l.reported("after a reload", "rule.yaml:1: DestinationRule shop/a: Envoy refused",
		"mesh.yml:1: Envoy refused")
	has("after a reload", p)
	has("a new epoch", f.connect(n, refuses))
	l.put("", "")
	l.put("rule.yaml", rule("2s"))
	l.reported("corrected")
}
