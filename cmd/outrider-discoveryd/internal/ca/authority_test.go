package ca

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
)

// files writes the files of [ca] to a directory and returns the settings for them.
func files(t testing.TB, chain, key, roots []byte) Settings {
	t.Helper()
	folder := t.TempDir()
	path := func(name string, text []byte) string {
		if text == nil {
			return ""
		}
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return Settings{path("cert", chain), path("key", key), path("roots", roots), time.Hour}
}

func TestAuthority_Files(t *testing.T) {
	root, other := pkitest.NewAuthority(t, "root", nil), pkitest.NewAuthority(t, "other", nil)
	middle := pkitest.NewAuthority(t, "middle", root)
	expired := pkitest.NewKey(t)
	old := root.Sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(-time.Minute)}, expired.Public())
	leaf, leafKey := root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	rootPEM, middlePEM := pkitest.PEM(root.Certificate), pkitest.PEM(middle.Certificate)
	middleKey := pkitest.KeyPEM(t, middle.Key)
	for _, c := range []struct {
		name             string
		chain, key, root []byte
		want             string
		intermediates    int
	}{
		{"root", rootPEM, pkitest.KeyPEM(t, root.Key), nil, "", 0},
		{"root with roots", rootPEM, pkitest.KeyPEM(t, root.Key),
			append(pkitest.PEM(other.Certificate), rootPEM...), "", 0},
		{"intermediate", middlePEM, middleKey, rootPEM, "", 1},
		{"intermediate with its root", append(middlePEM, rootPEM...), middleKey, nil, "", 1},
		{"intermediate without root", middlePEM, middleKey, nil, "set [ca] root_file", 0},
		{"foreign root", middlePEM, middleKey, pkitest.PEM(other.Certificate), "add its root", 0},
		{"another key", rootPEM, middleKey, nil, "private key is not that of", 0},
		{"no authority", leaf, leafKey, rootPEM, "may not sign certificates", 0},
		{"expired", pkitest.PEM(old), pkitest.KeyPEM(t, expired), rootPEM, "expired on", 0},
		{"no certificate", []byte("x"), middleKey, rootPEM, "has no certificate", 0},
		{"no key", middlePEM, []byte("x"), rootPEM, "has no private key", 0},
	} {
		read, err := readAuthority(files(t, c.chain, c.key, c.root), time.Now())
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "" && strings.Count(read.chain, "BEGIN") != c.intermediates:
			t.Errorf("%s: chain %s", c.name, read.chain)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// An issued certificate expires no later than the signing certificate.
func TestAuthority_Validity(t *testing.T) {
	root := pkitest.NewAuthority(t, "root", nil)
	read, err := readAuthority(files(t, pkitest.PEM(root.Certificate), pkitest.KeyPEM(t, root.Key),
		nil), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	end, public := root.Certificate.NotAfter, key(t, pki.ECDSAP256).Public()
	for _, c := range []struct{ now, want time.Time }{
		{end.Add(-2 * time.Hour), end.Add(-time.Hour)}, {end.Add(-time.Minute), end}, {end, time.Time{}},
	} {
		result, err := read.sign(public, ownID, c.now, time.Hour)
		if c.want.IsZero() {
			if err == nil {
				t.Error("an expired authority signs")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode([]byte(result.chain[0]))
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AddCert(root.Certificate)
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: c.now.Add(time.Second),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Error(err)
		}
		if !leaf.NotAfter.Equal(c.want.Truncate(time.Second)) || leaf.URIs[0].String() != ownID ||
			len(leaf.URIs) != 1 || leaf.Subject.String() != "" || len(leaf.SerialNumber.Bytes()) < 12 {
			t.Errorf("%v, want %v; %v %v", leaf.NotAfter, c.want, leaf.URIs, leaf.SerialNumber)
		}
	}
}

// BenchmarkIssue measures the time to check a certificate request with a P-256 key, and to issue
// the certificate with a P-256 signing key.
func BenchmarkIssue(b *testing.B) {
	root := pkitest.NewAuthority(b, "root", nil)
	read, err := readAuthority(files(b, pkitest.PEM(root.Certificate), pkitest.KeyPEM(b, root.Key),
		nil), time.Now())
	if err != nil {
		b.Fatal(err)
	}
	text := request(b, key(b, pki.ECDSAP256), nil)
	for b.Loop() {
		public, err := publicKey(text, ownID)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := read.sign(public, ownID, time.Now(), time.Hour); err != nil {
			b.Fatal(err)
		}
	}
}
