package systemtest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// certified is a host whose certificate is issued by a real istiod on the same machine.
type certified struct {
	*Host
	istiod *parts.IstiodCA
	path   string // path of istiod's program
	root   *pkitest.Authority
}

// newCertified boots a host whose agent authenticates to istiod with a client certificate. Neither
// the agent nor istiod runs yet.
func newCertified(t *testing.T) *certified {
	t.Helper()
	path, err := parts.IstiodPath()
	if err != nil {
		t.Fatal(err)
	}
	c := &certified{Host: NewHost(t, filepath.Dir(path)+":/opt/istiod"),
		path: "/opt/istiod/" + filepath.Base(path),
		istiod: &parts.IstiodCA{Folder: "/etc/ca", JWKS: "http://127.0.0.1:1/", Issuer: "none",
			Ports: [4]int{15110, 15112, 15180, 15114}}}
	root := pkitest.NewAuthority(t, "root", nil)
	c.root = root
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", 24*time.Hour))
	for name, text := range map[string][]byte{
		"/etc/ca/ca-key.pem":     pkitest.KeyPEM(t, root.Key),
		"/etc/ca/ca-cert.pem":    pkitest.PEM(root.Certificate),
		"/etc/ca/cert-chain.pem": pkitest.PEM(root.Certificate),
		"/etc/ca/root-cert.pem":  pkitest.PEM(root.Certificate),

		"/etc/outrider/prov/cert-chain.pem": chain,
		"/etc/outrider/prov/key.pem":        key,
		"/etc/outrider/root.pem":            pkitest.PEM(root.Certificate),
	} {
		c.WriteText(name, string(text))
	}
	c.WriteText("/etc/outrider/conf.d/60-identity.toml", `[node]
service_account = "web"
[identity]
provider = "istiod"
ca_address = "localhost:15112"
root_ca_file = "/etc/outrider/root.pem"
prov_cert_dir = "/etc/outrider/prov"
`)
	return c
}

// startIstiod starts istiod, which runs until the machine reboots.
func (c *certified) startIstiod() {
	c.t.Helper()
	c.WriteText("/etc/ca/mesh.yaml", "trustDomain: cluster.local\n")
	arguments := []string{"--quiet", "--unit=istiod", "--working-directory=/etc/ca"}
	for _, variable := range c.istiod.Environment() {
		arguments = append(arguments, "--setenv="+variable)
	}
	c.RunScript("mkdir -p /etc/ca/none")
	arguments = append(append(arguments, c.path), c.istiod.Arguments("/etc/ca")...)
	c.MustRun(c.t, "systemd-run", arguments...)
}

// workload returns the workload's certificate that the agent reports, the zero value if there is
// none.
func (c *certified) workload() api.Identity {
	c.t.Helper()
	var all []api.Identity
	if err := json.Unmarshal([]byte(c.MustRun(c.t, "outrider", "--json", "certs")),
		&all); err != nil {
		c.t.Fatal(err)
	}
	for _, one := range all {
		if one.Name == "default" {
			return one
		}
	}
	return api.Identity{}
}

// condition reports whether the condition with a code is active.
func (c *certified) condition(code string) bool {
	return strings.Contains(fmt.Sprint(c.Status().Conditions), code)
}

// The agent stores its certificate encrypted, and has it again after a reboot while istiod does not
// run. On a cloned machine, whose systemd cannot decrypt the agent's key, the agent starts without
// a certificate and reports that.
func TestPersist_SealedOverAReboot(t *testing.T) {
	t.Parallel()
	c := newCertified(t)
	c.startIstiod()
	c.MustRun(t, "systemctl", "start", "outrider.service")
	c.Eventually(time.Minute, "a certificate is issued",
		func() bool { return c.workload().Source == "istiod" })
	first := c.workload()
	const sealed = "/var/lib/outrider/outrider/certificate.sealed"
	c.Eventually(time.Minute, "it is sealed", func() bool {
		_, err := c.Run(t.Context(), "test", "-s", sealed)
		return err == nil
	})
	if mode := c.MustRun(t, "stat", "-c", "%a %U", sealed); mode != "600 outrider" {
		t.Errorf("%s: %s", sealed, mode)
	}
	if out := c.RunScript("strings " + sealed + " | grep -c -e BEGIN -e cluster.local || true"); out != "0" {
		t.Errorf("%s is readable: %s", sealed, out)
	}

	reboot := func() {
		t.Helper()
		if err := c.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.startBackend()
		c.MustRun(t, "systemctl", "start", "outrider.service")
		c.MustServe()
	}
	reboot() // istiod does not run after it
	if now := c.workload(); now.Source != "cache" || now.Serial != first.Serial {
		t.Errorf("after the reboot: %+v, want serial %s", now, first.Serial)
	}

	// During one boot the TPM is in lockout: the agent has no certificate. After the next boot it
	// has the stored one again.
	const creds = "/usr/local/bin/systemd-creds"
	c.WriteText(creds, `#!/bin/sh
[ "$1" = decrypt ] && { echo "the TPM is in lockout" >&2; exit 1; }
exec /usr/bin/systemd-creds "$@"
`)
	c.MustRun(t, "chmod", "755", creds)
	reboot()
	if now := c.workload(); now.Serial != "" || !c.condition("certificate-not-restored") {
		t.Errorf("the seal does not decrypt: %+v, conditions %v", now, c.Status().Conditions)
	}
	if log := c.Journal("-u", "outrider-seal.service", "-o", "cat"); !strings.Contains(log,
		"cannot decrypt outrider.seal, kept as") || !strings.Contains(log, "in lockout") {
		t.Errorf("the journal has no reason:\n%s", log)
	}
	c.MustRun(t, "rm", creds)
	reboot()
	if now := c.workload(); now.Source != "cache" || now.Serial != first.Serial {
		t.Errorf("the seal decrypts again: %+v, want serial %s", now, first.Serial)
	}

	// Without this key the machine cannot decrypt the credential, as a clone cannot.
	c.MustRun(t, "rm", "/var/lib/systemd/credential.secret")
	reboot()
	if now := c.workload(); now.Serial != "" {
		t.Errorf("a clone uses the certificate: %+v", now)
	}
	if !c.condition("certificate-not-restored") {
		t.Errorf("not reported: %v", c.Status().Conditions)
	}
	c.startIstiod()
	c.Eventually(2*time.Minute, "the clone has a certificate of its own", func() bool {
		now := c.workload()
		return now.Source == "istiod" && now.Serial != first.Serial &&
			!c.condition("certificate-not-restored")
	})

	// Without the credential that has the key, the agent stores no certificate, reports that, and
	// starts.
	c.RunScript("systemctl stop outrider.service outrider-seal.service; " +
		"systemctl mask --runtime outrider-seal.service; rm -rf /etc/credstore.encrypted")
	c.MustRun(t, "systemctl", "start", "outrider.service")
	c.MustServe()
	if log := c.Journal("-u", "outrider.service", "-o", "cat"); !strings.Contains(log,
		"certificates are not stored across reboots: no key to encrypt them") {
		t.Error("the missing credential is not reported")
	}
}
