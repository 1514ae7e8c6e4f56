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

// TestMeshCheck_WarnsOfApplicationPastEnvoy has an application that listens on all addresses behind
// a port that requires mutual TLS.
func TestMeshCheck_WarnsOfApplicationPastEnvoy(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	i.issue()
	application, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer application.Close()
	i.Write("mesh.d/strict.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default}
spec: {ingress: [{port: {number: %d, protocol: HTTP, name: http}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%d"}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default}
spec: {mtls: {mode: STRICT}}
`, parts.FreePort(t), application.Addr().(*net.TCPAddr).Port))
	i.StartReady()
	const warning = "where clients reach it without the mutual TLS that PeerAuthentication " +
		"default/default"
	rig.Eventually(t, time.Minute, "mesh check warns", func() bool {
		return strings.Contains(i.Outrider("mesh", "check").Err, warning)
	})
	if checked := i.Outrider("mesh", "check", "--strict"); checked.Exit != 1 {
		t.Errorf("mesh check --strict: %+v", checked)
	}
	_ = application.Close()
	if checked := i.Outrider("mesh", "check", "--strict"); checked.Exit != 0 {
		t.Errorf("without the application: %+v", checked)
	}
}
