package systemtest

import (
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
)

// With a key that the agent's user cannot read, and an output_dir that its unit cannot write, the
// agent starts. Its status and the commands for checks immediately name the problem and the command
// that solves it. The same holds for a key that the group can read, and for files of a Gateway that
// Envoy cannot read.
func TestIdentity_FilesTheAgentMayNotUse(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	root := pkitest.NewAuthority(t, "root", nil)
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", 24*time.Hour))
	const keyFile = "/etc/outrider/web.key"
	h.WriteText("/etc/outrider/web.crt", string(chain))
	h.WriteText(keyFile, string(key))
	h.WriteText("/etc/outrider/root.crt", string(pkitest.PEM(root.Certificate)))
	h.WriteText("/etc/outrider/conf.d/60-identity.toml", `[node]
type = "router"
[identity]
provider = "files"
cert_file = "/etc/outrider/web.crt"
key_file = "/etc/outrider/web.key"
root_ca_file = "/etc/outrider/root.crt"
output_dir = "/var/lib/elsewhere"
`)
	h.RunScript("chmod 600 " + keyFile + "; systemctl start outrider.service")
	fix := "user outrider cannot read " + keyFile + ": chown outrider " + keyFile + "; chmod 400 " +
		keyFile
	if out := h.MustRun(t, "outrider", "status"); !strings.Contains(out, fix) {
		t.Errorf("the status right after the start has no %q:\n%s", fix, out)
	}
	if out := h.MustRun(t, "outrider", "certs"); !strings.Contains(out, "default: "+fix) {
		t.Errorf("outrider certs:\n%s", out)
	}
	h.RunScript(strings.TrimPrefix(fix, "user outrider cannot read "+keyFile+": "))
	h.Eventually(time.Minute, "the certificate is provided and cannot be stored", func() bool {
		out := h.MustRun(t, "outrider", "status")
		return strings.Contains(out, "default from files") && !strings.Contains(out, fix) &&
			strings.Contains(out,
				"/var/lib/elsewhere: read-only file system; use a directory in /run/outrider")
	})
	// The group must not be able to read the key, because its members may be people.
	h.RunScript("chgrp outrider " + keyFile + "; chmod 640 " + keyFile + "; systemctl restart outrider")
	shared := "group outrider may read " + keyFile + ": chown outrider " + keyFile +
		"; chmod 400 " + keyFile
	h.Eventually(time.Minute, "the readable key is reported", func() bool {
		return strings.Contains(h.MustRun(t, "outrider", "status"), shared)
	})
	if out := h.MustRun(t, "outrider", "config", "check"); !strings.Contains(out, shared) {
		t.Errorf("config check: %s", out)
	}
	h.RunScript(strings.TrimPrefix(shared, "group outrider may read "+keyFile+": "))
	h.Eventually(3*time.Minute, "the report ends by itself", func() bool {
		return !strings.Contains(h.MustRun(t, "outrider", "status"), shared)
	})
	// With mode 710 Envoy can open files in the folder of a Gateway's certificate, but it cannot
	// watch the folder for changes.
	const folder = "/etc/outrider/edge"
	h.RunScript("install -d -m 710 -g outrider-envoy " + folder + "; cd /etc/outrider; " +
		"install -m 400 -o outrider-envoy web.crt web.key " + folder)
	h.WriteText("/etc/outrider/mesh.d/edge.yaml", `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  servers:
  - port: {number: 8443, name: https, protocol: HTTPS}
    tls: {mode: SIMPLE, serverCertificate: /etc/outrider/edge/web.crt, privateKey: /etc/outrider/edge/web.key}
    hosts: ["*"]
`)
	fix = "user outrider-envoy cannot read " + folder + ": chgrp outrider-envoy " + folder +
		"; chmod 750 " + folder
	h.Eventually(time.Minute, "the folder is named", func() bool {
		out, err := h.Run(t.Context(), "outrider", "mesh", "check")
		return err != nil && strings.Contains(out, fix)
	})
	h.RunScript("chmod 750 " + folder)
	h.Eventually(time.Minute, "Envoy serves", func() bool {
		_, err := h.Run(t.Context(), "curl", "-s", "-k", "-o", "/dev/null", "https://127.0.0.1:8443/")
		_, problems := h.Run(t.Context(), "outrider", "mesh", "check")
		return err == nil && problems == nil
	})
	// Access control lists grant or deny access in addition to the mode: Envoy can read open.key,
	// whose mode denies it, and cannot read shut.key, whose mode permits it.
	h.RunScript("cd " + folder + "; install -m 600 web.key open.key; setfacl -m u:outrider-envoy:r open.key; " +
		"install -m 644 web.key shut.key; setfacl -m u:outrider-envoy:- shut.key")
	gateway := h.MustRun(t, "cat", "/etc/outrider/mesh.d/edge.yaml")
	for port, name := range map[string]string{"8444": "open", "8445": "shut"} {
		h.WriteText("/etc/outrider/mesh.d/"+name+".yaml", strings.NewReplacer("8443", port,
			"name: edge,", "name: "+name+",", "web.key", name+".key").Replace(gateway))
	}
	const shut = "user outrider-envoy cannot read " + folder + "/shut.key: "
	h.Eventually(time.Minute, "the key that a list closes is named", func() bool {
		out, err := h.Run(t.Context(), "outrider", "mesh", "check")
		if strings.Contains(out, "open.key") {
			t.Fatalf("mesh check: %s", out)
		}
		return err != nil && strings.Contains(out, shut)
	})
	h.Eventually(time.Minute, "Envoy serves with the key that a list opens", func() bool {
		_, err := h.Run(t.Context(), "curl", "-s", "-k", "-o", "/dev/null", "https://127.0.0.1:8444/")
		return err == nil
	})
	h.MustRun(t, "systemctl", "stop", "outrider")
	if out, err := h.Run(t.Context(), "outrider", "mesh", "check"); err == nil ||
		!strings.Contains(out, shut) || strings.Contains(out, "open.key") {
		t.Errorf("mesh check without an agent: %v: %s", err, out)
	}
}
