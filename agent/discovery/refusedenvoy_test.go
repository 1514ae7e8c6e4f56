package discovery_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// TestRefusal_EnvoyOfEnvoyFilter makes a real Envoy refuse routes because of an EnvoyFilter, while
// other objects change the same routes. The other changes take effect. An Envoy that starts later
// gets the same resources, also from the next server.
func TestRefusal_EnvoyOfEnvoyFilter(t *testing.T) {
	l := newRuns(t)
	l.put("", "accessLogFile: /dev/stdout")
	port, two := parts.FreePort(t), &backend{name: "one"}
	service := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %%[1]s, namespace: shop}
spec: {hosts: [%%[1]s.test], resolution: STATIC, ports: [{number: %d, name: http, protocol: HTTP}],
  endpoints: [{address: 127.0.0.1, ports: {http: %d}}]}
---
`, port, two.serve(t, false))
	l.put("services.yaml", fmt.Sprintf(service, "a")+fmt.Sprintf(service, "b"))
	l.put("routes.yaml", routesTo("a", "/a1")+"---\n"+routesTo("b", "/b1"))
	l.next()
	path := func(host string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			fmt.Sprintf("http://127.0.0.1:%d/", port), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host + ".test"
		answer, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = answer.Body.Close() }()
		var seen echo
		_ = json.NewDecoder(answer.Body).Decode(&seen)
		return fmt.Sprint(answer.StatusCode, " ", seen.Path)
	}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	expect := func(what, a, b string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			got := path("a") + ", " + path("b")
			return got == fmt.Sprintf("200 %s, 200 %s", a, b), got + fmt.Sprint(l.server.Problems())
		})
	}
	t.Run("refused", func(t *testing.T) {
		e := startEnvoy(t, "sidecar", l.server)
		expect("at first", "/a1", "/b1")
		filter := `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: bad, namespace: shop}
spec:
  configPatches:
  - applyTo: HTTP_ROUTE
    match: {context: SIDECAR_OUTBOUND}
    patch: {operation: MERGE, value: {typed_per_filter_config: {outrider.test: {
        "@type": type.googleapis.com/xds.type.v3.TypedStruct, type_url: type.googleapis.com/outrider.test.Unknown, value: {}}}}}
`
		write(t, filepath.Join(l.objects, "filter.yaml"), filter)
		write(t, filepath.Join(l.objects, "routes.yaml"), routesTo("a", "/a2")+"---\n"+routesTo("b",
			"/b1"))
		l.changes <- []string{l.objects}
		l.changes <- nil
		expect("the good part of the change", "/a2", "/b1")
		l.reported("refused",
			"filter.yaml:1: EnvoyFilter shop/bad: Envoy refused the RouteConfiguration")
		if refusals := e.refusals(); len(refusals) != 1 {
			t.Errorf("refused: %q", refusals)
		}
		l.put("routes.yaml", routesTo("a", "/a2")+"---\n"+routesTo("b", "/b2"))
		expect("a later change", "/a2", "/b2")
		l.persists()
	})
	t.Run("another Envoy", func(t *testing.T) {
		e := startEnvoy(t, "sidecar", l.server)
		expect("another Envoy", "/a2", "/b2")
		if refusals := e.refusals(); len(refusals) != 0 {
			t.Errorf("refused: %q", refusals)
		}
	})
	t.Run("the next server", func(t *testing.T) {
		l.next()
		e := startEnvoy(t, "sidecar", l.server)
		expect("the next server", "/a2", "/b2")
		if refusals := e.refusals(); len(refusals) != 0 {
			t.Errorf("refused: %q", refusals)
		}
		l.reported("the next server",
			"filter.yaml:1: EnvoyFilter shop/bad: Envoy refused the RouteConfiguration")
	})
}
