package ca

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"outrider.org/outrider/agent/identity/pki"
)

// initValidity is the validity of all certificates that Init creates.
const initValidity = 365 * 24 * time.Hour

// file is a file that Init writes.
type file struct {
	name, purpose string
	mode          os.FileMode
	text          []byte
}

// Init creates a root, an intermediate and a server certificate for trials, and writes them with
// their keys to a directory, which must be empty or missing. names are the host names or addresses
// of the server; none: those of this host. It writes an explanation to out.
func Init(directory string, names []string, out io.Writer) error {
	directory, err := filepath.Abs(directory)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty; name a new directory", directory)
	}
	if len(names) == 0 {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		names = []string{host, "localhost", "127.0.0.1", "::1"}
	}
	end := time.Now().Add(initValidity)
	files, err := initFiles(names, end)
	if err != nil {
		return err
	}
	if err := writeAll(directory, files); err != nil {
		return err
	}
	return explain(out, directory, names, files, end)
}

// initFiles returns the certificates and keys of Init as files.
func initFiles(names []string, end time.Time) ([]file, error) {
	root, err := newMember("Outrider trial root", true, nil, end, nil)
	if err != nil {
		return nil, err
	}
	intermediate, err := newMember("Outrider trial intermediate", true, nil, end, root)
	if err != nil {
		return nil, err
	}
	server, err := newMember("", false, names, end, intermediate)
	if err != nil {
		return nil, err
	}
	encode := func(certificates ...*x509.Certificate) []byte {
		return pki.EncodeCertificates(certificates)
	}
	return []file{
		{"root.pem", "root: what agents trust", 0o644, encode(root.certificate)},
		{"root.key", "its key: nothing that runs needs it, store it elsewhere", 0o600, root.text},
		{"ca.pem", "intermediate, which signs the certificates of workloads", 0o644,
			encode(intermediate.certificate)},
		{"ca.key", "its key", 0o600, intermediate.text},
		{"server.pem", "certificate of this server for " + strings.Join(names, ", "), 0o644,
			encode(server.certificate, intermediate.certificate)},
		{"server.key", "its key", 0o600, server.text},
	}, nil
}

// member is a certificate with its key.
type member struct {
	certificate *x509.Certificate
	key         crypto.Signer
	text        []byte // private key as PEM
}

// newMember creates a key, and a certificate for it that issuer signs. If issuer is nil, the
// certificate is a root and signs itself.
func newMember(name string, authority bool, names []string, end time.Time, issuer *member) (
	*member, error) {
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return nil, err
	}
	text, err := pki.EncodeKey(key, true)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: serial, NotBefore: time.Now().Add(-clockTolerance),
		NotAfter: end, BasicConstraintsValid: true, IsCA: authority}
	if authority {
		template.Subject = pkix.Name{Organization: []string{name}}
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
		template.MaxPathLenZero = issuer != nil // an intermediate may not issue other authorities
	} else {
		template.KeyUsage = x509.KeyUsageDigitalSignature
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	if issuer == nil {
		issuer = &member{certificate: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer.certificate, key.Public(),
		issuer.key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &member{certificate, key, text}, err
}

// writeAll writes files, none of which may exist. If one cannot be written, it removes the files
// that it has written.
func writeAll(directory string, files []file) (err error) {
	if err := os.MkdirAll(directory, 0o755); err != nil { //nolint:gosec // certificates are public
		return err
	}
	var written []string
	defer func() {
		if err != nil {
			for _, path := range written {
				_ = os.Remove(path)
			}
		}
	}()
	for _, f := range files {
		path := filepath.Join(directory, f.name)
		opened, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if err != nil {
			return err
		}
		written = append(written, path)
		_, err = opened.Write(f.text)
		if err = errors.Join(err, opened.Chmod(f.mode), opened.Close()); err != nil {
			return err
		}
	}
	return nil
}

// explain writes a description of the files, a configuration that uses them, and a warning against
// production use.
func explain(out io.Writer, directory string, names []string, files []file, end time.Time) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Written to %s, valid until %s:\n", directory, end.Format(time.DateOnly))
	for _, f := range files {
		fmt.Fprintf(&text, "  %-10s  %s\n", f.name, f.purpose)
	}
	at := func(name string) string { return filepath.Join(directory, name) }
	fmt.Fprintf(&text, `
In /etc/outrider/discoveryd.d/ca.toml:

[listen]
tls = "0.0.0.0:15012"
[tls]
cert_file = %q
key_file = %q
[ca]
enabled = true
cert_file = %q
key_file = %q
root_file = %q

Then: chown outrider-discoveryd %s %s
Agents trust root.pem, and connect to %s.

This authority is for trying out, not for production: whoever reads a key on this disk can be
everyone in the mesh, nothing here can be revoked, and nothing renews these certificates. For
production, have an authority that you run sign the intermediate, or use its files.
`, at("server.pem"), at("server.key"), at("ca.pem"), at("ca.key"), at("root.pem"),
		at("server.key"), at("ca.key"), net.JoinHostPort(names[0], "15012"))
	_, err := io.WriteString(out, text.String())
	return err
}
