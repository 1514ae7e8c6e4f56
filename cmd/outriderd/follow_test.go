package main_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

// follower returns a function that adds another route to the service of the test host, and waits
// until Envoy uses it. metadata (flow style) and spec (block style) are additional YAML of the
// VirtualService.
func follower(t *testing.T, r *rig.Rig, metadata, spec string) func(when string) {
	changes := 0
	return func(when string) {
		t.Helper()
		changes++
		r.WriteFile("mesh.d/routes.yaml",
			fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: "+
				"{name: web%s}\nspec:\n  hosts: [web.test]\n%s"+
				"  http:\n  - {match: [{uri: {exact: /new%d}}], directResponse: {status: 418}}\n "+
				" - route: [{destination: {host: web.test}}]\n", metadata, spec, changes))
		rig.Eventually(t, time.Minute, "Envoy takes a change "+when, func() bool {
			code, _, err := r.GetThroughEnvoy(fmt.Sprintf("/new%d", changes))
			return err == nil && code == 418
		})
	}
}

// badBootstrap writes a bootstrap override that Envoy refuses ("malformed IP address"), and returns
// its path.
func badBootstrap(r *rig.Rig) string {
	r.WriteFile("bad.json",
		`{"static_resources":{"listeners":[{"name":"bad","address":{"socket_address":{"address":"not an address","port_value":1}}}]}}`)
	return filepath.Join(r.Dir, "bad.json")
}
