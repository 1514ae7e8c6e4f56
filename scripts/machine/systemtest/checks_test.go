package systemtest

import (
	"strings"
	"testing"
	"time"
)

const brokenMesh = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: broken}
spec:
  hosts: [web.test]
  htpp: []
`

const gatewayMesh = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  selector: {app: edge}
  servers:
  - port: {number: 8443, name: https, protocol: HTTPS}
    hosts: ["*"]
    tls: {mode: SIMPLE, serverCertificate: /etc/outrider/no.crt, privateKey: /etc/outrider/no.key}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge}
spec:
  hosts: [edge.test]
  gateways: [edge]
  http:
  - route: [{destination: {host: nowhere.test}}]
`

// `outrider mesh check` checks the files on disk, also with the permissions of Envoy's user.
func TestMeshCheck_IsAboutWhatIsSavedAndWhatEnvoyCanRead(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	// repeated, because it is random whether the agent has already read the changed file
	for range 5 {
		out, err := h.Run(t.Context(), "sh", "-c",
			"cat >/etc/outrider/mesh.d/broken.yaml <<'EOF'\n"+brokenMesh+
				"EOF\nexec outrider mesh check")
		if err == nil || !strings.Contains(out, "/etc/outrider/mesh.d/broken.yaml:6") {
			t.Errorf("a broken file was saved: %v %s", err, out)
		}
		if out, err := h.Run(t.Context(), "sh", "-c",
			"rm /etc/outrider/mesh.d/broken.yaml; exec outrider mesh check"); err != nil {
			t.Errorf("it was removed: %v %s", err, out)
		}
	}
	h.WriteText("/etc/outrider/mesh.d/edge.yaml", gatewayMesh)
	const warning = "warning: /etc/outrider/mesh.d/edge.yaml:"
	for _, command := range []string{"outrider mesh check",
		"outrider mesh check /etc/outrider/mesh.d"} {
		out := h.MustRun(t, "sh", "-c", command)
		for _, want := range []string{"1: Gateway default/edge: spec.selector: has no effect here: this proxy is a sidecar, and Gateways are for routers; set type = \"router\"",
			"11: VirtualService default/edge: spec.http[0].route[0].destination.host: no service has the " +
				"host nowhere.test"} {
			if !strings.Contains(out, warning+want) {
				t.Errorf("%s: no %q in\n%s", command, want, out)
			}
		}
	}
	h.WriteText("/etc/outrider/conf.d/node.toml",
		"[node]\ntype = \"router\"\nlabels = { app = \"edge\" }\n")
	h.RunScript("openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=edge -days 2 -keyout " +
		"/etc/outrider/no.key -out /etc/outrider/no.crt 2>/dev/null; chmod 644 " +
		"/etc/outrider/no.crt; chmod 600 /etc/outrider/no.key")
	h.MustRun(t, "outrider", "reload")
	for _, command := range []string{"outrider mesh check",
		"outrider mesh check /etc/outrider/mesh.d"} {
		out, err := h.Run(t.Context(), "sh", "-c", command)
		if err == nil || !strings.Contains(out, "error: /etc/outrider/mesh.d/edge.yaml:1: ") ||
			!strings.Contains(out, unreadable) {
			t.Errorf("%s: %v: no %q in\n%s", command, err, unreadable, out)
		}
		if strings.Contains(out, "Gateways are for routers") {
			t.Errorf("%s: it is a router:\n%s", command, out)
		}
	}
	h.keepsCertificate()
	h.RunScript("rm /etc/outrider/no.key")
	for _, command := range []string{"outrider mesh check",
		"outrider mesh check /etc/outrider/mesh.d"} {
		if out, _ := h.Run(t.Context(), "sh", "-c", command); !strings.Contains(out,
			"/etc/outrider/no.key does not exist") {
			t.Errorf("%s: the missing key is not reported:\n%s", command, out)
		}
	}
}

// unreadable is the reported problem with the key in gatewayMesh, and its fix.
const unreadable = "user outrider-envoy cannot read /etc/outrider/no.key: " +
	"chown outrider-envoy /etc/outrider/no.key; chmod 400 /etc/outrider/no.key"

// keepsCertificate makes the key readable for Envoy, and then unreadable. A reload is refused,
// because the new epoch would lack the certificate, and the live epoch still presents it.
func (h *Host) keepsCertificate() {
	h.t.Helper()
	shown := func() bool {
		_, err := h.Run(h.t.Context(), "curl", "-sk", "-m", "5", "-o", "/dev/null",
			"https://127.0.0.1:8443/")
		return err == nil
	}
	_, fix, _ := strings.Cut(unreadable, ": ")
	h.RunScript(fix)
	h.Eventually(time.Minute, "Envoy shows its certificate after the cure", shown)
	before := h.LiveEpoch().PID
	h.RunScript("chown root /etc/outrider/no.key; chmod 600 /etc/outrider/no.key")
	out, err := h.Run(h.t.Context(), "outrider", "reload")
	if err == nil ||
		!strings.Contains(out, "/etc/outrider/mesh.d/edge.yaml:1: Gateway default/edge: ") ||
		!strings.Contains(out, unreadable+"; then reload") {
		h.t.Errorf("a reload that would lose the certificate: %v %s", err, out)
	}
	if out, err := h.Run(h.t.Context(), "systemctl", "reload", "outrider.service"); err == nil {
		h.t.Errorf("systemctl reload: %s", out)
	}
	if now := h.LiveEpoch().PID; now != before || !shown() {
		h.t.Errorf("process %d serves, before it was %d; certificate shown: %v", now, before, shown())
	}
	h.RunScript(fix + "; outrider reload")
	if !shown() {
		h.t.Error("the next epoch shows no certificate")
	}
}

// `outrider config check` accepts exactly the configurations with which the agent starts.
func TestConfigCheck_GivesTheVerdictOfAStart(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "outrider", "config", "check")
	for _, c := range []struct {
		name, script, undo, says string
		starts                   bool
	}{
		{"a drop-in that is root's", "install -m 0600 /dev/null /etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml",
			"/etc/outrider/conf.d/x.toml: user outrider cannot read " +
				"/etc/outrider/conf.d/x.toml: chgrp outrider", false},
		{"another user", "printf '[envoy]\\nuser = \"root\"\\n' >/etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml", "x.toml:2:1: envoy.user: ", false},
		{"a file in /root",
			"echo '{}' >/root/o.yaml; printf '[envoy]\\nbootstrap_override = \"/root/o.yaml\"\\n' " +
				">/etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml",
			"x.toml:2:1: envoy.bootstrap_override: user outrider cannot read /root/o.yaml: its unit does " +
				"not see /root (ProtectHome=yes)", false},
		{"a flag that Envoy does not have",
			"printf '[envoy]\\nextra_args = [\"--nonsense\"]\\n' >/etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml",
			"x.toml:2:1: envoy.extra_args: Envoy 1.40.0 has no flag --nonsense; remove it", false},
		{"a table that does not exist",
			"printf '[proxy]\\nconcurrency = 2\\n' >/etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml",
			"x.toml:1:1: proxy: there is no such table; did you mean [envoy]?", false},
		{"a key of another table",
			"printf '[status]\\nconcurrency = 2\\n' >/etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml",
			"x.toml:2:1: status.concurrency: there is no such key; did you mean envoy.concurrency?", false},
		{"no Envoy", "rm /usr/local/bin/envoy", "ln -s /opt/envoy/envoy /usr/local/bin/envoy",
			"envoy.binary: no executable Envoy found", false},
	} {
		h.RunScript(c.script)
		out, err := h.Run(t.Context(), "outrider", "config", "check")
		if (err == nil) != c.starts || !strings.Contains(out, c.says) {
			t.Errorf("%s: the check: %v %s", c.name, err, out)
		}
		if out, err := h.Run(t.Context(), "systemctl", "start", "outrider.service"); (err == nil) != c.starts {
			t.Errorf("%s: the start: %v %s", c.name, err, out)
		}
		h.RunScript("systemctl stop outrider.service; systemctl reset-failed; " + c.undo)
	}
	// An agent would wait at its start for a missing folder of mesh files. The check reports it.
	h.RunScript("printf '[discovery]\\nfiles = [\"/etc/outrider/none.d\"]\\n' >/etc/outrider/conf.d/x.toml")
	out, err := h.Run(t.Context(), "outrider", "config", "check")
	if err != nil || !strings.Contains(out, "warning: /etc/outrider/conf.d/x.toml:2:1: "+
		"discovery.files: /etc/outrider/none.d does not exist") {
		t.Errorf("a folder of the mesh that is missing: %v %s", err, out)
	}
	h.RunScript("rm /etc/outrider/conf.d/x.toml")
	// A check of an instance's file includes the drop-ins of the instance.
	h.RunScript("mkdir /etc/outrider/web.conf.d; echo 'x = 1' >/etc/outrider/web.conf.d/x.toml; " +
		"install -g outrider -m 0640 /dev/null /etc/outrider/web.toml")
	out, err = h.Run(t.Context(), "outrider", "config", "check", "/etc/outrider/web.toml")
	if err == nil || !strings.Contains(out, "/etc/outrider/web.conf.d/x.toml:1:1: x: ") {
		t.Errorf("the file of an instance: %v %s", err, out)
	}
}
