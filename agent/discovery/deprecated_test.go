package discovery_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/scripts/parts"
)

// TestDeprecated_AsEnvoyJudges: Envoy accepts or refuses a deprecated field of an EnvoyFilter as
// Outrider's warning about the field predicts.
func TestDeprecated_AsEnvoyJudges(t *testing.T) {
	const key = "envoy.deprecated_features:envoy.config.route.v3.RateLimit.Action.dynamic_metadata"
	for _, test := range []struct{ cluster, route, runtime, warning, envoy string }{
		{route: "rate_limits: [{actions: [{dynamic_metadata: {descriptor_key: a, metadata_key: {key: a, path: [{key: b}]}}}]}]",
			warning: "dynamic_metadata is deprecated since version 3.0 of Envoy's API, and Envoy refuses it unless " +
				"the runtime key " + key + " is true",
			envoy: "Using deprecated option 'envoy.config.route.v3.RateLimit.Action.dynamic_metadata'"},
		{route: "rate_limits: [{actions: [{dynamic_metadata: {descriptor_key: a, metadata_key: {key: a, path: [{key: b}]}}}]}]",
			runtime: `"` + key + `": true`, warning: "is deprecated"},
		{cluster: "dns_refresh_rate: 5s",
			warning: "dns_refresh_rate is deprecated since version 3.0 of Envoy's API, and a later Envoy may refuse it"},
	} {
		folder := t.TempDir()
		write(t, filepath.Join(folder, "filter.yaml"), `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: a}
spec:
  configPatches:
  - {applyTo: HTTP_ROUTE, patch: {operation: MERGE, value: {route: {`+test.route+`}}}}
  - {applyTo: CLUSTER, patch: {operation: MERGE, value: {`+test.cluster+`}}}
`)
		problems, err := discovery.Check([]string{folder}, discovery.CheckOptions{})
		if err != nil {
			t.Fatal(err)
		}
		warned := ""
		for _, p := range problems {
			if p.Severity == "warning" {
				warned += p.Message + "\n"
			}
		}
		if !strings.Contains(warned, test.warning) {
			t.Errorf("warned %q, want %q", warned, test.warning)
		}
		write(t, filepath.Join(folder, "envoy.yaml"), `layered_runtime: {layers: [{name: a, static_layer: {`+test.runtime+`}}]}
static_resources:
  clusters: [{name: c, type: STRICT_DNS, load_assignment: {cluster_name: c}, `+test.cluster+`}]
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: 1}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: a
          route_config: {virtual_hosts: [{name: a, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: c, `+test.route+`}}]}]}
          http_filters: [{name: r, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
`)
		said, err := exec.CommandContext(t.Context(), parts.EnvoyPath(t), "--mode", "validate",
			"--concurrency", "1",
			"-c", filepath.Join(folder, "envoy.yaml")).CombinedOutput()
		if (err != nil) != (test.envoy != "") || !strings.Contains(string(said), test.envoy) {
			t.Errorf("%s%s: Envoy: %v, want %q: %s", test.cluster, test.route, err, test.envoy, said)
		}
	}
}
