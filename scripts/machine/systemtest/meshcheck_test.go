package systemtest

import (
	"strings"
	"testing"
	"time"
)

// refusedMesh has a Gateway with certificate files, and an EnvoyFilter that only Envoy can refuse:
// its Lua script does not compile.
const refusedMesh = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  servers:
  - port: {number: 8443, name: https, protocol: HTTPS}
    hosts: [web.test]
    tls:
      mode: SIMPLE
      serverCertificate: /etc/outrider/tls/a.crt
      privateKey: /etc/outrider/tls/a.key
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  gateways: [edge]
  http:
  - directResponse: {status: 204}
`

const refusedFilter = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: script, namespace: default}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: GATEWAY
      listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: envoy.filters.http.lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: "this is no Lua"}
`

// What Envoy refused remains an error of mesh check, as of status, and a check sends Envoy nothing.
func TestMeshCheck_ReportsWhatEnvoyRefused(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.Script(`mkdir -p /etc/outrider/tls && cd /etc/outrider/tls && ` +
		`openssl req -x509 -nodes -days 9 -newkey ec -pkeyopt ec_paramgen_curve:P-256 ` +
		`-subj /CN=web.test -addext subjectAltName=DNS:web.test -keyout a.key -out a.crt && ` +
		`chown outrider-envoy a.* && chmod 0400 a.*`)
	h.Write("/etc/outrider/conf.d/10-router.toml", "[node]\ntype = \"router\"\n")
	h.Write("/etc/outrider/mesh.d/web.yaml", refusedMesh)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	serves := func() bool {
		out, _ := h.Run(t.Context(), "curl", "-sk", "-m", "5", "-o", "/dev/null", "-w",
			"%{http_code}", "--resolve", "web.test:8443:127.0.0.1", "https://web.test:8443/")
		return out == "204"
	}
	h.Eventually(time.Minute, "the Gateway serves", serves)
	h.MustRun(t, "outrider", "mesh", "check")

	const file = "/etc/outrider/mesh.d/script.yaml"
	h.Write(file, refusedFilter)
	refused := func(text string) bool {
		return strings.Contains(text, file+":1: ") && strings.Contains(text, "script load error")
	}
	check := func() bool {
		out, err := h.Run(t.Context(), "outrider", "mesh", "check")
		return err != nil && strings.Contains(out, "error: ") && refused(out)
	}
	h.Eventually(time.Minute, "mesh check reports the refusal", check)
	refusals := func() string {
		return h.Script("journalctl -q --no-pager -o cat -u outrider.service | " +
			"grep -c 'refuses resources'")
	}
	before := refusals()
	for i := range 5 {
		if !check() {
			out, err := h.Run(t.Context(), "outrider", "mesh", "check")
			t.Fatalf("check %d: %v: %s", i, err, out)
		}
	}
	h.MustRun(t, "journalctl", "--sync")
	if after := refusals(); after != before || before == "0" {
		t.Errorf("Envoy refused %s times before the checks, %s times after them", before, after)
	}
	if out := h.MustRun(t, "outrider", "status"); !strings.Contains(out, "1 error") {
		t.Errorf("status: %s", out)
	}
	if !serves() {
		t.Error("the Gateway no longer serves")
	}
	h.MustRun(t, "rm", file)
	h.Eventually(time.Minute, "mesh check is content again", func() bool {
		_, err := h.Run(t.Context(), "outrider", "mesh", "check")
		return err == nil
	})
}
