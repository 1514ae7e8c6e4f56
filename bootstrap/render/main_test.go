package render

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/scripts/parts"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	parts.Golden(t, filepath.Join("testdata", name), string(got), *update)
}

// folder returns a folder for bootstraps with relative paths: tls/ has a certificate, its key and
// its root.
func folder(t *testing.T) string {
	t.Helper()
	dir := parts.ShortDir(t)
	if err := os.Mkdir(filepath.Join(dir, "tls"), 0o700); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		DNSNames:  []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) {
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(filepath.Join(dir, "tls", name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cert.pem", "CERTIFICATE", certificate)
	write("root.pem", "CERTIFICATE", certificate)
	write("key.pem", "PRIVATE KEY", private)
	return dir
}

// validate makes the real Envoy check a bootstrap.
func validate(t *testing.T, dir string, rendered []byte) {
	t.Helper()
	path := filepath.Join(dir, "validate.json")
	if err := os.WriteFile(path, rendered, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), parts.EnvoyPath(t), "--mode", "validate", "-c",
		path,
		"--disable-hot-restart",
		"--concurrency", "1", "-l", "warning")
	command.Dir = dir
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("Envoy refuses it: %v\n%s", err, output)
	}
}

// eventually polls until the condition holds, for at most thirty seconds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	parts.Eventually(t, time.Minute, what, holds)
}

func render(t *testing.T, in bootstrap.Input) []byte {
	t.Helper()
	built, err := buildBootstrap(in)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := encodeJSON(built)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(rendered, []byte("}\n")) || strings.Contains(string(rendered), "\t") {
		t.Errorf("not as it should look: %s", rendered)
	}
	return rendered
}
