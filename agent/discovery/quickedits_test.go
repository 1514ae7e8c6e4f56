package discovery_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// TestFallback_EnvoyGatewayMovedToTakenPort edits a Gateway quickly: its port moves to ones that
// another program has, and back. The accepted port answers all the time. Envoy's refusal of the
// last edit is attributed to the Gateway, which goes back.
func TestFallback_EnvoyGatewayMovedToTakenPort(t *testing.T) {
	l := newRuns(t)
	l.put("", "accessLogFile: /dev/stdout")
	port := parts.FreePort(t)
	var taken []int
	for range 2 {
		listener, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		taken = append(taken, listener.Addr().(*net.TCPAddr).Port)
	}
	edits := 0
	edit := func(port int) { // every edit moves the objects in the file, too
		edits++
		l.put("gateway.yaml", fmt.Sprintf(`# edit %d
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop, annotations: {edit: "%[1]d"}}
spec:
  selector: {app: edge}
  servers: [{port: {number: %[2]d, name: http, protocol: HTTP}, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec: {hosts: ["*"], gateways: [edge], http: [{directResponse: {status: 200}}]}
`, edits, port))
	}
	edit(port)
	l.next()
	e := startEnvoy(t, "router", l.server)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request := func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			fmt.Sprintf("http://127.0.0.1:%d/", port), http.NoBody)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}
	eventually(t, "the first answer", func() (bool, string) {
		err := request()
		return err == nil, fmt.Sprint(err)
	})
	answers := func() {
		t.Helper()
		if err := request(); err != nil {
			t.Fatalf("edit %d: %v", edits, err)
		}
	}
	for i := range 10 {
		edit(taken[i%2])
		answers()
		if i%3 == 0 {
			edit(taken[(i+1)%2])
		} else {
			edit(port)
		}
		answers()
	}
	edit(taken[0])
	edit(taken[0])
	// of the last edit, or of one that Envoy refused after it was replaced
	const refused = "gateway.yaml:2: Gateway shop/edge: Envoy refused the Listener 0.0.0.0_"
	eventually(t, "the Gateway goes back", func() (bool, string) {
		answers()
		problems := l.server.Problems()
		return len(problems) == 1 && strings.Contains(problems[0].String(), refused),
			fmt.Sprint(problems, e.refusals())
	})
	for range 100 {
		answers()
	}
}

// TestFallback_ObjectChangedSinceGoesBack changes the object again before Envoy refuses the cluster
// of the first change.
func TestFallback_ObjectChangedSinceGoesBack(t *testing.T) {
	l := newFallback(t)
	l.put("rule.yaml", rule("3s"))
	l.put("rule.yaml", rule("3s")+"---\n"+routesTo("b", "/b1"))
	l.put("rule.yaml", strings.Replace(rule("3s"), "name: a", "name: a, labels: {edit: '2'}", 1))
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	l.serves("after the refusal", "2s", badCluster)
	l.put("rule.yaml", rule("4s"))
	l.serves("corrected", "4s")

	l.put("b.yaml", fmt.Sprintf(webEntry, "b", "10.0.0.2"))
	b := discovery.RefusedResource{Name: "outbound|80||b.test",
		Version: l.newest(resource.ClusterType, "outbound|80||b.test").Version}
	l.put("b.yaml", "")
	if standing, _ := l.server.Refused(resource.ClusterType, []discovery.RefusedResource{b},
		errors.New("bad")); len(standing) > 0 {
		t.Errorf("removed before it was refused: %v", standing)
	}
	l.serves("removed before it was refused", "4s")
}
