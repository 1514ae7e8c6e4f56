package main_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

// TestMesh_ReportsServicesOnAgentPorts adds services on the ports of Envoy's admin interface and
// metrics. The agent reports them, and Envoy gets no listeners for them: both ports continue to
// work.
func TestMesh_ReportsServicesOnAgentPorts(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	for name, port := range map[string]int{"[envoy] admin_port": r.Ports.Admin,
		"[telemetry] prometheus_address": r.Ports.Prometheus} {
		r.WriteFile("mesh.d/own.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: own}
spec:
  hosts: [own.test]
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
`, port))
		rig.Eventually(t, time.Minute, "a condition says who has the port: "+name, func() bool {
			return slices.ContainsFunc(conditions(t, r), func(said string) bool {
				return strings.Contains(said, "own.yaml") &&
					strings.Contains(said, name+" of the agent")
			})
		})
	}
	if told := conditions(t, r); len(told) != 1 {
		t.Errorf("conditions %q", told)
	}
	for path, port := range map[string]int{"/server_info": r.Ports.Admin,
		"/stats/prometheus": r.Ports.Prometheus} {
		if code, _, err := r.GetHostThroughEnvoy("localhost", port,
			path); err != nil || code != 200 {
			t.Errorf("GET %s at %d: %d %v", path, port, code, err)
		}
	}
}
