package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// edge returns a Gateway with an address and a port, whose response is 204.
func edge(name string, port int, address string) string {
	return parts.GatewayYAML(name, name+".test", fmt.Sprintf(
		"- {port: {number: %d, name: http, protocol: HTTP}, bind: %s, hosts: [%s.test]}", port, address,
		name), "- directResponse: {status: 204}")
}

// healthCheck returns an EnvoyFilter that inserts a health check filter into all listeners of
// Gateways. Envoy refuses the filter if settings add a cache time, because it has no pass-through
// mode.
func healthCheck(settings string) string {
	return parts.GatewayFilterYAML("alive",
		`{name: envoy.filters.http.health_check, typed_config: {`+
			`"@type": type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck, `+
			`headers: [{name: ":path", string_match: {exact: /alive}}], `+
			`pass_through_mode: false`+settings+`}}`)
}

// TestGateway_PortTaken: another program uses ports of Gateways at the start of the agent, when a
// Gateway is added, and during a reload. Until a port is free, a condition names the Gateway and
// the program. The agent is unready only while Envoy can bind no port of a Gateway.
func TestGateway_PortTaken(t *testing.T) {
	t.Parallel()
	first, releaseFirst := parts.OccupiedPort(t)
	second, releaseSecond := parts.OccupiedPort(t)
	third, releaseThird := parts.OccupiedPort(t)
	free := parts.FreePort(t)
	r := rig.New(t, rig.Options{Race: true, TOML: "[node]\ntype = \"router\"\n",
		Mesh: map[string]string{"0.yaml": healthCheck(""),
			"web.yaml": edge("first", first, "0.0.0.0")}})
	r.Start()
	rig.Eventually(t, time.Minute, "the agent answers", func() bool {
		return r.RunOutrider("status").ExitCode == 0
	})
	reports := func(file, gateway string, port int) {
		t.Helper()
		said := ""
		defer func() {
			if t.Failed() {
				t.Log(said)
			}
		}()
		want := []string{fmt.Sprintf("%s/mesh.d/%s:1: Gateway default/%s: nothing listens on 0.0.0.0:%d: "+
			"the port is taken by ", r.Dir, file, gateway, port), "of user "}
		rig.Eventually(t, time.Minute, "a condition names "+file, func() bool {
			said = strings.Join(conditions(t, r), "\n")
			return strings.Contains(said, want[0]) && strings.Contains(said, want[1])
		})
		if strings.Contains(said, "0.yaml") {
			t.Errorf("the EnvoyFilter is blamed: %s", said)
		}
		if out := r.RunOutrider("mesh", "check"); out.ExitCode != 1 ||
			!strings.Contains(fmt.Sprint(out),
				"error: "+want[0]) {
			t.Errorf("mesh check: %v", out)
		}
	}
	answers := func(host string, port int) {
		t.Helper()
		rig.Eventually(t, time.Minute, host+" answers", func() bool {
			code, _, err := r.GetHostThroughEnvoy(host+".test", port, "/")
			return err == nil && code == 204
		})
	}
	reports("web.yaml", "first", first)
	rig.Eventually(t, time.Minute, "the agent is not ready", func() bool {
		ready, why := r.Ready()
		return !ready && strings.Contains(why, "none of the listeners")
	})
	r.WriteFile("mesh.d/other.yaml", edge("free", free, "127.0.0.1"))
	answers("free", free)
	r.WaitReady(time.Minute)
	r.WriteFile("mesh.d/second.yaml", edge("second", second, "0.0.0.0"))
	reports("second.yaml", "second", second)
	if out := r.RunOutrider("reload"); out.ExitCode != 0 {
		t.Errorf("reload: %v", out)
	}
	reports("web.yaml", "first", first)
	reports("second.yaml", "second", second)
	r.WaitReady(time.Minute)
	r.WriteFile("mesh.d/second.yaml", strings.ReplaceAll(edge("second", second, "0.0.0.0"),
		"status: 204",
		"status: 204, body: {string: x}"))
	reports("second.yaml", "second", second)

	r.WriteFile("mesh.d/other.yaml", edge("free", third, "0.0.0.0"))
	reports("other.yaml", "free", third)
	// Envoy still serves the Gateway's previous port, because the new one is occupied
	answers("free", free)

	releaseFirst()
	answers("first", first)
	reports("second.yaml", "second", second)
	releaseSecond()
	answers("second", second)
	releaseThird()
	answers("free", third)
	rig.Eventually(t, time.Minute, "no condition is left", func() bool {
		return len(conditions(t, r)) == 0
	})
	if out := r.RunOutrider("mesh", "check"); out.ExitCode != 0 {
		t.Errorf("mesh check: %v", out)
	}
}

// TestReadiness_FirstListenersRefused starts with an EnvoyFilter that makes Envoy refuse all
// listeners: the agent is not ready.
func TestReadiness_FirstListenersRefused(t *testing.T) {
	t.Parallel()
	port := parts.FreePort(t)
	r := rig.New(t, rig.Options{Race: true, TOML: "[node]\ntype = \"router\"\n",
		Mesh: map[string]string{"web.yaml": edge("first", port, "127.0.0.1"),
			"0.yaml": healthCheck(", cache_time: 1s")}})
	r.Start()
	rig.Eventually(t, time.Minute, "the agent is not ready", func() bool {
		ready, why := r.Ready()
		return !ready && strings.Contains(why, "Envoy refused all of its first Listeners")
	})
	r.WriteFile("mesh.d/0.yaml", healthCheck(""))
	r.WaitReady(time.Minute)
	rig.Eventually(t, time.Minute, "no condition is left", func() bool {
		return len(conditions(t, r)) == 0
	})
}
