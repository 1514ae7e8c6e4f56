package main_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

const edgeMesh = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: default}
spec:
  servers:
  - port: {number: %[2]d, name: http, protocol: HTTP}
    bind: %[3]s
    hosts: [%[1]s.test]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: default}
spec:
  hosts: [%[1]s.test]
  gateways: [%[1]s]
  http:
  - directResponse: {status: 204}
`

// edgeFilter changes all listeners of Gateways.
const edgeFilter = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: alive, namespace: default}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: GATEWAY
      listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: envoy.filters.http.health_check
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck
          pass_through_mode: false
          headers: [{name: ":path", string_match: {exact: /alive}}]
`

// taken is a port that the test has.
func taken(t *testing.T) (port int, release func()) {
	t.Helper()
	port = parts.FreePort(t)
	listener, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	return port, func() { _ = listener.Close() }
}

// TestGateway_PortTaken has ports of Gateways that another program has when the agent starts, when
// a Gateway is added, and during a reload. Each is a condition that names the Gateway and the
// program, until the port is free; only if no port can be bound, the agent is not ready.
func TestGateway_PortTaken(t *testing.T) {
	t.Parallel()
	first, releaseFirst := taken(t)
	second, releaseSecond := taken(t)
	third, releaseThird := taken(t)
	free := parts.FreePort(t)
	r := rig.New(t, rig.Options{Race: true, TOML: "[node]\ntype = \"router\"\n",
		Mesh: map[string]string{"0.yaml": edgeFilter,
			"web.yaml": fmt.Sprintf(edgeMesh, "first", first, "0.0.0.0")}})
	r.Start()
	rig.Eventually(t, time.Minute, "the agent answers", func() bool {
		return r.Outrider("status").Exit == 0
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
		if out := r.Outrider("mesh", "check"); out.Exit != 1 || !strings.Contains(fmt.Sprint(out),
			"error: "+want[0]) {
			t.Errorf("mesh check: %v", out)
		}
	}
	answers := func(host string, port int) {
		t.Helper()
		rig.Eventually(t, time.Minute, host+" answers", func() bool {
			code, _, err := r.GetHost(host+".test", port, "/")
			return err == nil && code == 204
		})
	}
	reports("web.yaml", "first", first)
	rig.Eventually(t, time.Minute, "the agent is not ready", func() bool {
		ready, why := r.Ready()
		return !ready && strings.Contains(why, "none of the listeners")
	})
	r.Write("mesh.d/other.yaml", fmt.Sprintf(edgeMesh, "free", free, "127.0.0.1"))
	answers("free", free)
	r.WaitReady(time.Minute)
	r.Write("mesh.d/second.yaml", fmt.Sprintf(edgeMesh, "second", second, "0.0.0.0"))
	reports("second.yaml", "second", second)
	if out := r.Outrider("reload"); out.Exit != 0 {
		t.Errorf("reload: %v", out)
	}
	reports("web.yaml", "first", first)
	reports("second.yaml", "second", second)
	r.WaitReady(time.Minute)
	r.Write("mesh.d/second.yaml", strings.ReplaceAll(fmt.Sprintf(edgeMesh, "second", second,
		"0.0.0.0"), "status: 204", "status: 204, body: {string: x}"))
	reports("second.yaml", "second", second)

	r.Write("mesh.d/other.yaml", fmt.Sprintf(edgeMesh, "free", third, "0.0.0.0"))
	reports("other.yaml", "free", third)
	answers("free", free) // its former port

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
	if out := r.Outrider("mesh", "check"); out.Exit != 0 {
		t.Errorf("mesh check: %v", out)
	}
}

// TestReadiness_FirstListenersRefused starts with a filter that Envoy refuses in all listeners.
func TestReadiness_FirstListenersRefused(t *testing.T) {
	t.Parallel()
	port := parts.FreePort(t)
	r := rig.New(t, rig.Options{Race: true, TOML: "[node]\ntype = \"router\"\n",
		Mesh: map[string]string{"web.yaml": fmt.Sprintf(edgeMesh, "first", port, "127.0.0.1"),
			// Envoy caches only with pass_through_mode.
			"0.yaml": strings.ReplaceAll(edgeFilter, "pass_through_mode: false",
				"pass_through_mode: false\n          cache_time: 1s")}})
	r.Start()
	rig.Eventually(t, time.Minute, "the agent is not ready", func() bool {
		ready, why := r.Ready()
		return !ready && strings.Contains(why, "Envoy refused all of its first Listeners")
	})
	r.Write("mesh.d/0.yaml", edgeFilter)
	r.WaitReady(time.Minute)
	rig.Eventually(t, time.Minute, "no condition is left", func() bool {
		return len(conditions(t, r)) == 0
	})
}
