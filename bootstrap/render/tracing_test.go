package render

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/scripts/parts"
)

// traced is a listener that enables tracing without naming a provider, as those of an istiod do.
const traced = `{"static_resources": {"listeners": [{
  "name": "web", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}},
  "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "web", "tracing": {},
    "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
      "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
    "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
      {"match": {"prefix": "/"}, "direct_response": {"status": 200}}]}]}}}]}]}]}}`

func TestTracing_SendsSampledSpans(t *testing.T) {
	for _, test := range []struct {
		sampling float64
		arrive   bool
	}{{100, true}, {0, false}} {
		t.Run(fmt.Sprint(test.sampling), func(t *testing.T) {
			var spans atomic.Int64
			collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter,
				r *http.Request) {
				if r.URL.Path == "/api/v2/spans" {
					spans.Add(1)
				}
			}))
			defer collector.Close()
			dir := parts.ShortDir(t)
			in := input(inputs["minimal"])
			in.AdminSocket = filepath.Join(dir, "admin.sock")
			in.Stats.All = true
			in.Tracing = &bootstrap.Tracing{Provider: bootstrap.TracerZipkin,
				Sampling: test.sampling,
				Service:  bootstrap.Server{Address: strings.TrimPrefix(collector.URL, "http://")}}
			port := parts.FreePort(t)
			merged, err := Override(render(t, in), "bootstrap", "traced.json",
				fmt.Appendf(nil, traced, port))
			if err != nil {
				t.Fatal(err)
			}
			run(t, dir, in.AdminSocket, merged)
			const requests = 10 // Envoy sends spans in batches of five
			for range requests {
				if code, _ := get(t, fmt.Sprintf("127.0.0.1:%d", port), http.MethodGet,
					"/"); code != 200 {
					t.Fatalf("%d", code)
				}
			}
			sampled := 0
			if test.arrive {
				sampled = requests
				eventually(t, "spans arrive", func() bool { return spans.Load() > 0 })
			}
			_, stats := get(t, in.AdminSocket, http.MethodGet,
				"/stats?filter=^http.web.tracing.random_sampling$")
			if want := fmt.Sprintf("http.web.tracing.random_sampling: %d\n",
				sampled); stats != want {
				t.Errorf("got %q, want %q", stats, want)
			}
			if !test.arrive && spans.Load() > 0 {
				t.Errorf("%d batches of spans arrived", spans.Load())
			}
		})
	}
}
