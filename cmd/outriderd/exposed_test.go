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

// TestStrict_ApplicationPastEnvoy: Envoy requires mutual TLS for an application, but the
// application listens on all addresses, so other hosts can bypass Envoy. The agent is not ready
// until the application ends.
func TestStrict_ApplicationPastEnvoy(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	i.issue()
	port, ingress := parts.FreePort(t), parts.FreePort(t)
	i.WriteFile("mesh.d/strict.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default}
spec: {ingress: [{port: {number: %d, protocol: HTTP, name: http}, bind: 0.0.0.0, defaultEndpoint: "127.0.0.1:%d"}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default}
spec: {mtls: {mode: STRICT}}
`, ingress, port))
	i.StartReady()
	if checked := i.RunOutrider("mesh", "check", "--strict"); checked.ExitCode != 0 {
		t.Errorf("without the application: %+v", checked)
	}
	application, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer application.Close()
	want := fmt.Sprintf("other hosts reach port %d (0.0.0.0:%[1]d) over IPv4 without the mutual TLS "+
		"that PeerAuthentication default/default", port)
	rig.Eventually(t, time.Minute, "the agent is not ready", func() bool {
		status := i.RunOutrider("status").Stdout
		return strings.Contains(status, "not ready") && strings.Contains(status, "mutual-tls-bypassed")
	})
	checked := i.RunOutrider("mesh", "check")
	if checked.ExitCode != 1 || !strings.Contains(checked.Stderr, want) ||
		!strings.Contains(checked.Stderr, `set mode = "redirect" in [capture]`) {
		t.Errorf("mesh check: %+v", checked)
	}
	if status := i.RunOutrider("status").Stdout; !strings.Contains(status, "1 error; run ") {
		t.Errorf("status has not the problem of mesh check: %s", status)
	}
	i.KillAgent() // Envoy retains its listeners, so the next agent does not send them again.
	i.Start()
	rig.Eventually(t, time.Minute, "the next agent is not ready", func() bool {
		return strings.Contains(i.RunOutrider("status").Stdout, "mutual-tls-bypassed")
	})
	_ = application.Close()
	rig.Eventually(t, time.Minute, "the agent is ready", func() bool {
		return i.RunOutrider("wait", "--timeout", "1s").ExitCode == 0
	})
	if checked := i.RunOutrider("mesh", "check", "--strict"); checked.ExitCode != 0 {
		t.Errorf("the application has ended: %+v", checked)
	}
}
