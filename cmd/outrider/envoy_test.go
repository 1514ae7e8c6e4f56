package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/scripts/parts"
)

// TestProxy_RealEnvoy runs the "outrider proxy" commands with the admin interface of a real Envoy.
func TestProxy_RealEnvoy(t *testing.T) {
	admin := startEnvoy(t, fmt.Sprintf(`, "node": {"id": "sidecar~x", "cluster": "y"}, "static_resources": {
 "secrets": [{"name": "roots", "validation_context": {"trusted_ca": {"inline_bytes": %q}}}],
 "clusters": [{"name": "one", "connect_timeout": "1s", "lb_policy": "LEAST_REQUEST", "load_assignment": {"cluster_name": "one", "endpoints": [{"lb_endpoints": [
   {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 9}}}, "load_balancing_weight": 3}]}]}}],
 "listeners": [{"name": "web", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}, "filter_chains": [{"filters": [{"name": "hcm", "typed_config": {
   "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "s",
   "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
   "route_config": {"name": "web", "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [{"match": {"prefix": "/api"}, "route": {"cluster": "one"}},
     {"match": {"path": "/gone"}, "direct_response": {"status": 410}}]}]}}}]}]}]}`, certificateForTests()))
	m := newMachine(t, &apitest.Backend{AdminTransport: admin})
	wide := []string{"-o", "wide"}
	for _, test := range []struct {
		command string
		wide    []string
		want    []string
	}{
		{"clusters", wide, []string{"one STATIC LEAST_REQUEST static - active 1/1 -"}},
		{"listeners", wide, []string{"web 127.0.0.1:0 static - active 1 -"}},
		{"routes", wide, []string{"web static v * /api* one -",
			"web static v * /gone answer 410 -"}},
		{"endpoints", wide, []string{"127.0.0.1:9 one healthy 3 0 0 0 -"}},
		{"secrets", wide, []string{"roots roots static - active " +
			"spiffe://cluster.local/ns/default/sa/web 2026-03-01 13:00:00Z -"}},
		{"bootstrap", nil, []string{`"id": "sidecar~x",`}},
	} {
		code, out, problems := m.outrider(append([]string{"proxy", test.command}, test.wide...)...)
		if code != 0 {
			t.Errorf("%s: %d %s", test.command, code, problems)
		}
		for _, want := range test.want {
			found := false
			for line := range strings.Lines(out) {
				found = found || strings.Join(strings.Fields(line), " ") == want
			}
			if !found {
				t.Errorf("%s: no line %q in\n%s", test.command, want, out)
			}
		}
	}
}

// startEnvoy runs a real Envoy until the test ends. members is JSON that is added to its bootstrap.
// It returns a transport to its admin interface.
func startEnvoy(t *testing.T, members string) http.RoundTripper {
	t.Helper()
	socket := filepath.Join(parts.ShortDir(t), "admin.sock")
	envoy := parts.StartEnvoy(t, socket, fmt.Sprintf(
		`{"admin": {"address": {"pipe": {"path": %q, "mode": 384}}}%s}`, socket, members))
	envoy.WaitLive(t)
	return envoy.Admin
}
