package main_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// gateway is an agent with node type router. It has a TLS server whose certificate and key are
// files.
type gateway struct {
	*rig.Rig
	port       int
	crt, key   string
	crtText    string
	keyText    string
	definition string
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	own := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{port: parts.FreePort(t), Rig: rig.New(t, rig.Options{Race: true,
		TOML: "[node]\ntype = \"router\"\n[reload]\nwatch = false\n"})}
	g.crt, g.key = filepath.Join(g.Dir, "edge.crt"), filepath.Join(g.Dir, "edge.key")
	g.crtText = string(pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}))
	g.keyText = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	g.definition = fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  servers:
  - port: {number: %d, name: https, protocol: HTTPS}
    hosts: ["*"]
    tls: {mode: SIMPLE, serverCertificate: %s, privateKey: %s}
`, g.port, g.crt, g.key)
	return g
}

func (g *gateway) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// handshakes reports whether a TLS handshake with the gateway succeeds.
func (g *gateway) handshakes() bool {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	c, err := tls.DialWithDialer(dialer, "tcp", fmt.Sprintf("127.0.0.1:%d", g.port),
		&tls.Config{InsecureSkipVerify: true})
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

func TestReload_KeepsEpochThatHasTheCertificate(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.write(t, g.crt, g.crtText)
	g.write(t, g.key, g.keyText)
	g.WriteFile("mesh.d/edge.yaml", g.definition)
	g.StartReady()
	rig.Eventually(t, time.Minute, "the gateway serves its certificate", g.handshakes)
	before := current(t, g.Rig)
	place := filepath.Join(g.Dir, "mesh.d", "edge.yaml") + ":1: Gateway default/edge: "
	for _, broken := range []struct {
		what   string
		change func()
		says   string
	}{
		{"missing", func() { _ = os.Remove(g.key) },
			g.key + " does not exist; create it, then reload"},
		{"not a key", func() {
			g.write(t, g.key, "no key")
			rig.Eventually(t, time.Minute, "Envoy has refused the key", func() bool {
				return strings.Contains(g.RunOutrider("mesh", "check").Stderr, "Envoy refused")
			})
		}, "correct the file, then reload"},
	} {
		what := broken.what
		broken.change()
		result := g.RunOutrider("reload")
		if result.ExitCode != 1 || !strings.Contains(result.Stderr, place) ||
			!strings.Contains(result.Stderr, broken.says) {
			t.Errorf("%s: exit %d: %s%s", what, result.ExitCode, result.Stdout, result.Stderr)
		}
		if now := current(t, g.Rig); now.PID != before.PID || !g.handshakes() {
			t.Errorf("%s: epoch %+v serves, its certificate: %v", what, now, g.handshakes())
		}
		g.write(t, g.key, g.keyText) // the reload begins before Envoy has read the restored key
		if result := g.RunOutrider("reload"); result.ExitCode != 0 || !g.handshakes() {
			t.Errorf("a reload after %s: exit %d: %s", what, result.ExitCode, result.Stderr)
		}
		before = current(t, g.Rig)
	}
}

// TestReload_GoesOnWhereNoEpochHasTheCertificate starts Envoy without the key of a certificate. A
// reload is not refused because of it: the live epoch lacks the certificate, too.
func TestReload_GoesOnWhereNoEpochHasTheCertificate(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.write(t, g.crt, g.crtText)
	g.WriteFile("mesh.d/edge.yaml", g.definition)
	g.StartReady()
	rig.Eventually(t, time.Minute, "Envoy has refused the certificate", func() bool {
		return strings.Contains(g.RunOutrider("mesh", "check").Stderr, "Envoy refused")
	})
	if told := g.RunOutrider("mesh", "check"); told.ExitCode != 1 ||
		!strings.Contains(told.Stderr, "error: "+filepath.Join(g.Dir, "mesh.d", "edge.yaml")+":1") {
		t.Errorf("mesh check: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	// the only condition is that of the Gateway, with file and line
	if all := conditions(t, g.Rig); len(all) != 1 {
		t.Errorf("one refusal, and the conditions are %q", all)
	}
	if result := g.RunOutrider("reload"); result.ExitCode != 0 {
		t.Errorf("reload: exit %d: %s", result.ExitCode, result.Stderr)
	}
}
