package main_test

import (
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

const destinations = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: out}
spec:
  servers:
  - {port: {number: %[1]d, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: out}
spec:
  hosts: ["*"]
  gateways: [out]
  http:
  - {match: [{uri: {prefix: /tls}}], route: [{destination: {host: far.test}}]}
  - {route: [{destination: {host: nowhere.invalid}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: nowhere}
spec:
  hosts: [nowhere.invalid]
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far}
spec:
  hosts: [far.test]
  resolution: STATIC
  ports: [{number: 443, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[2]s}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: far}
spec: {host: far.test, trafficPolicy: {tls: {mode: SIMPLE, sni: far.test, subjectAltNames: [far.test]}}}
`

// TestMeshCheck_KnowsWhatTheRunningEnvoyFound sends requests to a host name that does not resolve,
// and to a server whose certificate is not trusted. "outrider mesh check" then reports both causes.
func TestMeshCheck_KnowsWhatTheRunningEnvoyFound(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	_, backend, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	port := parts.FreePort(t)
	r := rig.New(t, rig.Options{Race: true, TOML: "[node]\ntype = \"router\"\n",
		Mesh: map[string]string{"out.yaml": fmt.Sprintf(destinations, port, backend)}})
	r.StartReady()
	for _, path := range []string{"/", "/tls"} {
		if code, _, err := r.GetHostThroughEnvoy("any.test", port,
			path); err != nil || code != 503 {
			t.Errorf("GET %s: %d %v", path, code, err)
		}
	}
	file := "warning: " + filepath.Join(r.Dir, "mesh.d", "out.yaml")
	wants := []string{
		file + ":18: ServiceEntry default/nowhere: nowhere.invalid does not resolve: cluster " +
			"outbound|80||nowhere.invalid has no endpoint; correct the name, or the DNS of this host: " +
			"getent hosts nowhere.invalid",
		file + ":35: DestinationRule default/far: no TLS connection to cluster outbound|443||far.test " +
			"has succeeded since Envoy started: its certificate is not trusted (ssl.fail_verify_error); " +
			"set caCertificates to the file of its authority",
	}
	rig.Eventually(t, time.Minute, "Envoy has looked the name up", func() bool {
		return strings.Contains(r.RunOutrider("mesh", "check").Stderr, "does not resolve")
	})
	told := r.RunOutrider("mesh", "check")
	for _, want := range wants {
		if told.ExitCode != 0 || !strings.Contains(told.Stderr, want) {
			t.Errorf("mesh check: exit %d, no %q: %s", told.ExitCode, want, told.Stderr)
		}
	}
	if told := r.RunOutrider("status"); !strings.Contains(told.Stdout, "2 warnings") {
		t.Errorf("status: %s", told.Stdout)
	}
	told = r.RunOutrider("mesh", "explain", fmt.Sprintf("any.test:%d/", port))
	if told.ExitCode != 1 ||
		!strings.Contains(told.Stdout, "=> answered with status 503: nowhere.invalid does not resolve") {
		t.Errorf("explain: exit %d: %s", told.ExitCode, told.Stdout)
	}
	told = r.RunOutrider("mesh", "explain", fmt.Sprintf("any.test:%d/tls", port))
	if told.ExitCode != 0 || !strings.Contains(told.Stdout, "its certificate is not trusted") {
		t.Errorf("explain of TLS: exit %d: %s", told.ExitCode, told.Stdout)
	}
	told = r.RunOutrider("mesh", "explain", "any.test:1/")
	want := fmt.Sprintf("nothing listens on port 1; listeners: 127.0.0.1:%d", port)
	if told.ExitCode != 1 || !strings.Contains(told.Stdout, want) {
		t.Errorf("explain of a port without a listener: exit %d: %s", told.ExitCode, told.Stdout)
	}
}
