package systemtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// TestImport_AgentJoinsWithIstioctlsFiles imports the files that istioctl writes for a virtual
// machine, and starts the agent. Their token has expired, so the agent authenticates its first
// request to istiod with a certificate of prov_cert_dir.
func TestImport_AgentJoinsWithIstioctlsFiles(t *testing.T) {
	t.Parallel()
	c := newCertified(t)
	c.istiod.Ports[1] = 15012
	c.MustRun(t, "rm", "-r", "/etc/outrider/conf.d/60-identity.toml", "/etc/outrider/prov")
	files := filepath.Join(parts.RepositoryRoot(), "cmd", "outrider", "istiovm", "testdata", "bare")
	for _, name := range []string{"cluster.env", "mesh.yaml", "istio-token"} {
		text, err := os.ReadFile(filepath.Join(files, name))
		if err != nil {
			t.Fatal(err)
		}
		c.WriteText("/root/vm/"+name, strings.NewReplacer("'vm'", "'default'", ": vm\n",
			": default\n").
			Replace(string(text)))
	}
	c.RunScript("cp /etc/ca/root-cert.pem /root/vm; echo 127.0.0.1 istiod.istio-system.svc " +
		">/root/vm/hosts")
	chain, key := c.root.Issue(t, pkitest.LeafTemplate("default", time.Hour))
	c.WriteText("/etc/certs/cert-chain.pem", string(chain))
	c.WriteText("/etc/certs/key.pem", string(key))
	c.RunScript(`install -d -m 0700 -o outrider /run/istio-certs
install -m 0400 -o outrider /etc/certs/cert-chain.pem /etc/certs/key.pem /run/istio-certs
printf '[identity]\nprov_cert_dir = "/run/istio-certs"\n' >/etc/outrider/conf.d/51-first.toml
chgrp outrider /etc/outrider/conf.d/51-first.toml; rm -r /etc/certs`)
	c.startIstiod()

	c.MustRun(t, "outrider", "import", "istio", "/root/vm", "--apply")
	if got := c.MustRun(t, "stat", "-c", "%a %U %G", "/etc/outrider/istio/istio-token",
		"/etc/outrider/conf.d/50-istio.toml"); got != "400 outrider outrider\n640 root outrider" {
		t.Errorf("modes and owners: %s", got)
	}
	c.MustRun(t, "outrider", "config", "check")
	c.MustRun(t, "systemctl", "start", "outrider.service")
	c.Eventually(time.Minute, "istiod configures Envoy and signs its certificate", func() bool {
		return c.Status().Ready && c.Status().Discovery.State == "connected" &&
			c.workload().SPIFFEID == "spiffe://cluster.local/ns/default/sa/default" &&
			c.workload().Source == "istiod" && c.Status().Capture == "on"
	})
	// From now on the agent authenticates with its current certificate, so it does not need the
	// first one again. It stores the private key only in encrypted form.
	first := c.workload().Serial
	c.RunScript("rm -r /run/istio-certs /etc/outrider/conf.d/51-first.toml; " +
		"printf '[identity]\\nttl = \"23h\"\\n' >/etc/outrider/conf.d/60-ttl.toml; outrider reload")
	c.Eventually(time.Minute, "a certificate is issued for the current one", func() bool {
		now := c.workload()
		return now.Serial != first && now.Source == "istiod" &&
			c.Status().Discovery.State == "connected"
	})
	if out, _ := c.Run(t.Context(), "grep", "-rl", "PRIVATE KEY", "/etc/outrider", "/var/lib/outrider",
		"/run/outrider"); out != "" {
		t.Errorf("keys in clear: %s", out)
	}
	again := c.MustRun(t, "outrider", "import", "istio", "/root/vm", "--apply")
	if strings.Count(again, ": unchanged\n") != 4 {
		t.Errorf("again: %s", again)
	}
}
