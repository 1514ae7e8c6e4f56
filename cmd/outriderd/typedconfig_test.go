package main_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// TestTypedConfig_MisspeltFieldChangesNothing misspells a field of a rate limit filter. The
// protobuf type of the filter is not linked into the agent, which refuses the change nevertheless.
func TestTypedConfig_MisspeltFieldChangesNothing(t *testing.T) {
	t.Parallel()
	const limit = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: limit}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: limit
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
          stat_prefix: limit
          filter_enabled: {default_value: {numerator: 100}}
          filter_enforced: {default_value: {numerator: 100}}
          status: {code: ServiceUnavailable}
          token_bucket: {max_tokens: 1, fill_interval: 3600s}
`
	r := rig.New(t, rig.Options{Race: true, Mesh: map[string]string{"limit.yaml": limit}})
	r.StartReady()
	limited := func() bool {
		code, _, err := r.GetThroughEnvoy("/")
		return err == nil &&
			code == 503
	}
	rig.Eventually(t, time.Minute, "requests are limited", limited)
	if told := r.RunOutrider("mesh", "check"); told.ExitCode != 0 || told.Stderr != "" {
		t.Errorf("check: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}

	r.WriteFile("mesh.d/limit.yaml", strings.Replace(limit, "token_bucket:", "token_buckets:", 1))
	file := filepath.Join(r.Dir, "mesh.d", "limit.yaml")
	wrong := file + ":18: EnvoyFilter default/limit: spec.configPatches[0].patch.value.typed_config." +
		`token_buckets: LocalRateLimit has no field "token_buckets"; did you mean token_bucket?`
	rig.Eventually(t, time.Minute, "status names the field", func() bool {
		return strings.Contains(r.RunOutrider("status").Stdout, wrong)
	})
	for _, arguments := range [][]string{{"mesh", "check"}, {"mesh", "check", file}} {
		if told := r.RunOutrider(arguments...); told.ExitCode != api.ExitRefused ||
			!strings.Contains(told.Stderr, wrong) {
			t.Errorf("%s: exit %d: %s%s", arguments, told.ExitCode, told.Stdout, told.Stderr)
		}
	}
	if !limited() {
		t.Error("the version before is not in force")
	}
	if said := r.Daemon().Output(); strings.Contains(said, "Unknown field") {
		t.Errorf("Envoy got the field: %s", said)
	}
	r.WriteFile("mesh.d/limit.yaml", limit)
	rig.Eventually(t, time.Minute, "the error is gone", func() bool {
		return r.RunOutrider("mesh", "check").ExitCode == 0
	})
}
