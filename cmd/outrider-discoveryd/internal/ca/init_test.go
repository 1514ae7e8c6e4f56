package ca

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestInit_MakesFilesThatWorkTogether(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "new", "ca")
	var said strings.Builder
	if err := Init(directory, []string{"mesh.test", "10.0.0.1"}, &said); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(directory, name) }
	for name, mode := range map[string]os.FileMode{"root.pem": 0o644, "root.key": 0o600,
		"ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600} {
		if info, err := os.Stat(at(name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	if _, err := readAuthority(Settings{CertFile: at("ca.pem"), KeyFile: at("ca.key"),
		RootFile: at("root.pem")}, time.Now()); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(at("server.pem"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile(at("root.pem"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, rest := pem.Decode(text)
	certificate, err := x509.ParseCertificate(leaf.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	intermediates.AppendCertsFromPEM(rest)
	for _, name := range []string{"mesh.test", "10.0.0.1"} {
		if _, err := certificate.Verify(x509.VerifyOptions{DNSName: name, Roots: roots,
			Intermediates: intermediates}); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(said.String(), "not for production") {
		t.Errorf("said %s", said.String())
	}
}

func TestInit_RefusesADirectoryWithContents(t *testing.T) {
	directory := t.TempDir()
	if err := Init(directory, nil, io.Discard); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(directory, "root.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Init(directory, nil, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a second time: %v", err)
	}
	after, err := os.ReadFile(filepath.Join(directory, "root.key"))
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the key has changed: %v", err)
	}
}
