package systemtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
)

// httpsServer is a server of a Gateway, with the files that certificate writes.
const httpsServer = `- port: {number: 8443, name: https, protocol: HTTPS}
  hosts: [web.test]
  tls:
    mode: SIMPLE
    serverCertificate: /etc/outrider/tls/a.crt
    privateKey: /etc/outrider/tls/a.key`

// certificate writes a self-signed certificate for web.test, and its key, which Envoy's user can
// read.
func (h *Host) certificate(days int) {
	h.t.Helper()
	h.RunScript(`mkdir -p /etc/outrider/tls && cd /etc/outrider/tls && ` +
		`openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 ` +
		`-subj /CN=web.test -addext subjectAltName=DNS:web.test -keyout a.key -out a.crt ` +
		fmt.Sprintf(`-days %d && `, days) + `chown outrider-envoy a.* && chmod 0400 a.*`)
}

// refusedFilter is a configuration that only Envoy refuses: its Lua script does not compile.
var refusedFilter = parts.GatewayFilterYAML("script",
	`{name: envoy.filters.http.lua, typed_config: {`+
		`"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, `+
		`default_source_code: {inline_string: "this is no Lua"}}}`)

// `outrider mesh check` reports the same problems as the status, among them what Envoy has refused,
// for as long as they exist. A check sends nothing to Envoy.
func TestMeshCheck_ReportsWhatEnvoyRefused(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.certificate(9)
	h.WriteText("/etc/outrider/conf.d/10-router.toml", "[node]\ntype = \"router\"\n")
	h.WriteText("/etc/outrider/mesh.d/web.yaml", parts.GatewayYAML("edge", "web.test", httpsServer,
		"- directResponse: {status: 204}"))
	h.MustRun(t, "systemctl", "start", "outrider.service")
	serves := func() bool {
		out, _ := h.Run(t.Context(), "curl", "-sk", "-m", "5", "-o", "/dev/null", "-w",
			"%{http_code}", "--resolve", "web.test:8443:127.0.0.1", "https://web.test:8443/")
		return out == "204"
	}
	h.Eventually(time.Minute, "the Gateway serves", serves)
	h.MustRun(t, "outrider", "mesh", "check")

	const file = "/etc/outrider/mesh.d/script.yaml"
	h.WriteText(file, refusedFilter)
	refused := func(text string) bool {
		return strings.Contains(text, file+":1: ") && strings.Contains(text, "script load error")
	}
	check := func() bool {
		out, err := h.Run(t.Context(), "outrider", "mesh", "check")
		return err != nil && strings.Contains(out, "error: ") && refused(out)
	}
	h.Eventually(time.Minute, "mesh check reports the refusal", check)
	refusals := func() string {
		return h.RunScript("journalctl -q --no-pager -o cat -u outrider.service | " +
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
	content := func() bool {
		out, err := h.Run(t.Context(), "outrider", "mesh", "check", "--strict")
		return err == nil && !strings.Contains(out, "error: ")
	}
	h.Eventually(time.Minute, "mesh check is content again", content)

	for _, fault := range []struct{ name, cause, fix, says string }{
		{"a port that cannot be bound", "systemd-run -q --unit=holder " + programs +
			"/backend -http 127.0.0.1:8500 -tcp 127.0.0.1:8501; sed s/8443/8500/ " +
			"/etc/outrider/mesh.d/web.yaml | sed s/edge/busy/ >/etc/outrider/mesh.d/busy.yaml",
			"rm /etc/outrider/mesh.d/busy.yaml; systemctl stop holder", "8500"},
		{"a secret that Envoy refuses", "cd /etc/outrider/tls; cp -p a.key old.key; openssl ecparam " +
			"-genkey -name prime256v1 -noout -out a.key 2>/dev/null",
			"cd /etc/outrider/tls; mv old.key a.key", "/etc/outrider/tls/a.key: the private key is " +
				"not that of the certificate in /etc/outrider/tls/a.crt; replace both files"},
		{"a policy that is invalid", "printf 'apiVersion: extensions.istio.io/v1alpha1\nkind: " +
			"WasmPlugin\nmetadata: {name: closed}\nspec: {phase: AUTHZ, " +
			"selector: {matchLabels: {app: other}}}\n' " +
			">/etc/outrider/mesh.d/closed.yaml", "rm /etc/outrider/mesh.d/closed.yaml",
			"every request to the workloads that it selects is denied, because no valid " +
				"version of it is known"},
		{"a folder that cannot be read", "chmod 000 /etc/outrider/mesh.d",
			"chmod 755 /etc/outrider/mesh.d", "user outrider cannot read /etc/outrider/mesh.d; chgrp " +
				"outrider /etc/outrider/mesh.d; chmod g+rx /etc/outrider/mesh.d"},
	} {
		h.RunScript(fault.cause)
		h.Eventually(time.Minute, fault.name+" is a problem of both", func() bool {
			checked, says := h.meshProblems()
			status, _ := json.Marshal(h.Status().Problems)
			return slices.ContainsFunc(checked, func(p string) bool {
				return strings.Contains(p, fault.says)
			}) && says == string(status)
		})
		h.RunScript(fault.fix)
		h.Eventually(time.Minute, "no problem without "+fault.name, content)
	}
	if !serves() {
		t.Error("the Gateway no longer serves")
	}
}

// meshProblems returns the messages of the errors and warnings of `outrider mesh check`, and all
// problems in JSON.
func (h *Host) meshProblems() (messages []string, all string) {
	h.t.Helper()
	out, _ := h.Run(h.t.Context(), "outrider", "mesh", "check", "--json")
	var found []api.MeshProblem
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	for _, p := range found {
		if p.Severity != "info" {
			messages = append(messages, p.File+": "+p.Message)
		}
	}
	encoded, err := json.Marshal(found)
	if err != nil {
		h.t.Fatal(err)
	}
	return messages, string(encoded)
}

// `outrider mesh check PATH` with a file that is not part of the mesh configuration reports which
// of Envoy's resources would change. It does so only for an authorised user, and changes nothing.
func TestMeshCheck_ComparesWithWhatEnvoyHas(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	h.RunScript("sed s/9000/9002/ /etc/outrider/mesh.d/web.yaml >/root/web.yaml; mkdir -m 755 /srv/new; " +
		"sed s/web/news/ /etc/outrider/mesh.d/web.yaml >/srv/new/news.yaml")
	out := h.MustRun(t, "sh", "-c", "cd /root && outrider mesh check web.yaml")
	for _, want := range []string{"web.yaml: valid\n", "0 added, 1 changed, 0 removed\n",
		"ClusterLoadAssignment  outbound|80||web.test  web.yaml:1 ServiceEntry default/web"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	for _, path := range []string{"/etc/outrider/mesh.d", "/etc/outrider/mesh.d/web.yaml"} {
		if out := h.MustRun(t, "outrider", "mesh", "check", path); !strings.HasSuffix(out,
			"no resource would change") {
			t.Errorf("%s: %s", path, out)
		}
	}
	out = h.MustRun(t, "outrider", "mesh", "check", "/srv/new")
	for _, want := range []string{"added    Cluster ", "outbound|80||news.test ",
		"/srv/new/news.yaml:1 ServiceEntry default/news\n", "removed  Cluster ",
		"/etc/outrider/mesh.d/web.yaml:1 ServiceEntry default/web"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	out = h.MustRun(t, "setpriv", "--reuid", "nobody", "--clear-groups", "outrider", "mesh", "check",
		"/srv/new")
	if !strings.Contains(out, "/srv/new: valid") || strings.Contains(out, "outbound|") ||
		!strings.Contains(out, "not compared with what the agent serves: not authorised: ") {
		t.Errorf("as another user: %s", out)
	}
	h.MustServe()
}
