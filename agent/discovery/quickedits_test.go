package discovery_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// TestRefusal_EnvoyGatewayMovedToTakenPort edits a Gateway quickly: its port changes to ports that
// another program uses, and back. The port that Envoy accepted answers all the time.
func TestRefusal_EnvoyGatewayMovedToTakenPort(t *testing.T) {
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
	// every edit also changes the comment and the annotation, so that no version of the Gateway
	// equals an earlier one
	edit := func(port int) {
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
	eventually(t, "the listener is refused", func() (bool, string) {
		answers()
		all := e.refusals()
		return len(all) > 0 && strings.Contains(all[len(all)-1], "cannot bind"), fmt.Sprint(all)
	})
	for range 100 {
		answers()
	}
}
