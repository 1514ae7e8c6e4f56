package main_test

import (
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

// The status server serves the metrics of the embedded discovery server besides those of Envoy.
func TestMetrics_OfDiscovery(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	scrape := func() string {
		t.Helper()
		code, body, err := r.GetHostThroughEnvoy("localhost", r.Ports.Status, "/stats/prometheus")
		if err != nil || code != 200 {
			t.Fatalf("status %d, %v", code, err)
		}
		return body
	}
	for _, want := range []string{"\npilot_xds 1\n", "\npilot_services 1\n",
		"\npilot_virt_services 0\n", "\npilot_debounce_time_count 0\n",
		"\npilot_total_xds_rejects 0\n",
		`pilot_xds_pushes{type="cds"} `, `pilot_xds_pushes{type="lds"} `,
		"\npilot_xds_cds_reject 0\n", "\nenvoy_server_live"} {
		rig.Eventually(t, time.Minute, "there is "+strings.TrimSpace(want),
			func() bool { return strings.Contains(scrape(), want) })
	}
	r.WriteFile("mesh.d/route.yaml",
		`{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web},
  spec: {hosts: [web.test], http: [{timeout: 5s, route: [{destination: {host: web.test}}]}]}}`)
	for _, want := range []string{"\npilot_virt_services 1\n", "\npilot_debounce_time_count 1\n",
		"\noutrider_push_seconds_count 1\n"} {
		rig.Eventually(t, time.Minute, "then there is "+strings.TrimSpace(want),
			func() bool { return strings.Contains(scrape(), want) })
	}
}
