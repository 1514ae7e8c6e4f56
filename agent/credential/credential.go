// Package credential locates and reads the certificates that Gateways and DestinationRules name
// (credentialName). A credential is a folder with the files of a Kubernetes secret:
//
//	DIR/NAME/tls.crt, tls.key           certificate chain and key
//	DIR/NAME-cacert/ca.crt, ca.crl      CA certificates, and optional revocation lists
//	DIR/NAME/ca.crt, ca.crl             the same, used if DIR/NAME-cacert does not exist
//
// Its secrets have istiod's names: kubernetes://NAME and kubernetes://NAME-cacert. A credential
// sds://NAME has no folder: an SDS server on the host serves its secrets as sds://NAME and
// sds://NAME-cacert, as with istiod.
package credential

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"outrider.org/outrider/agent/ownership"
)

// SDSClusterName is the name of the Envoy cluster that serves the secrets of credentials if the
// workload's own certificate comes from an SDS server other than the agent.
const SDSClusterName = "sds-credentials"

// ExternalSDSClusterName is the name of the Envoy cluster of the host's SDS server, which serves
// credentials sds://NAME; istiod uses the same name.
const ExternalSDSClusterName = "sds-external"

const (
	prefix      = "kubernetes://"
	hostPrefix  = "sds://"
	rootsSuffix = "-cacert"
)

// maxName is the maximum length of a secret's name in Kubernetes, that of a DNS subdomain.
const maxName = 253

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// CheckName returns an error for a name that Kubernetes would not accept. A valid name is a single
// path element.
func CheckName(name string) error {
	if len(name) > maxName || !validName.MatchString(name) {
		return fmt.Errorf("%.60q is not a valid credential name: it must have at most %d "+
			"characters, only a-z, 0-9, - and ., and no - or . at its ends", name, maxName)
	}
	return nil
}

// IsExternalSDSSecret reports whether the SDS server of the host, and not the agent, serves the
// credential or secret with this name.
func IsExternalSDSSecret(name string) bool { return strings.HasPrefix(name, hostPrefix) }

// CheckExternalSDSSecretName returns an error for a name sds://NAME that no SDS server could have.
func CheckExternalSDSSecretName(name string) error {
	short := strings.TrimPrefix(name, hostPrefix)
	if short == "" || len(short) > maxName || strings.ContainsFunc(short, func(r rune) bool {
		return r <= ' ' || r > '~'
	}) {
		return fmt.Errorf("%.60q is not a valid credential name: after sds:// it must have 1 "+
			"to %d printable ASCII characters and no space", name, maxName)
	}
	return nil
}

// KeyPairSecretName returns the name of the secret that contains a credential's certificate and
// key.
func KeyPairSecretName(name string) string {
	if IsExternalSDSSecret(name) {
		return name
	}
	return prefix + name
}

// RootsSecretName returns the name of the secret that contains a credential's authorities. The name
// of the credential may be NAME or NAME-cacert.
func RootsSecretName(name string) string {
	return KeyPairSecretName(strings.TrimSuffix(name, rootsSuffix) + rootsSuffix)
}

// IsFileCredential reports whether the name of a secret is that of a credential in a folder, which
// excludes sds://NAME.
func IsFileCredential(secret string) bool { return strings.HasPrefix(secret, prefix) }

// DescribeSecret returns the designation of a credential's secret in messages: "credential NAME" or
// "credential NAME-cacert". ok is false for other secrets.
func DescribeSecret(secret string) (title string, ok bool) {
	if IsExternalSDSSecret(secret) {
		return "credential " + secret, true
	}
	name, ok := strings.CutPrefix(secret, prefix)
	return "credential " + name, ok
}

// Files are the paths of a secret's files; each secret has either a pair (Cert, Key) or
// authorities.
type Files struct {
	Cert, Key  string   // of a pair
	Roots, CRL []string // candidates for authorities: the first whose folder exists is used
}

// LocateFiles returns the paths of a secret's files in a directory of credentials.
func LocateFiles(dir, secret string) (Files, error) {
	name := strings.TrimPrefix(secret, prefix)
	if err := CheckName(name); err != nil {
		return Files{}, err
	}
	base, roots := strings.CutSuffix(name, rootsSuffix)
	if !roots || base == "" {
		return Files{
			Cert: filepath.Join(dir, name, "tls.crt"), Key: filepath.Join(dir, name, "tls.key"),
		}, nil
	}
	return Files{
		Roots: []string{filepath.Join(dir, name, "ca.crt"), filepath.Join(dir, base, "ca.crt")},
		CRL:   []string{filepath.Join(dir, name, "ca.crl"), filepath.Join(dir, base, "ca.crl")},
	}, nil
}

// AllPaths returns all paths; some may not exist.
func (f Files) AllPaths() []string {
	if f.Cert != "" {
		return []string{f.Cert, f.Key}
	}
	return slices.Concat(f.Roots, f.CRL)
}

// AuthoritiesPath returns the first candidate for the file of CA certificates; "" if f is a
// certificate with its key.
func (f Files) AuthoritiesPath() string {
	if len(f.Roots) == 0 {
		return ""
	}
	return f.Roots[0]
}

// RequiredAlternatives returns lists of paths: of each list, one file must exist. The last path is
// the usual location.
func (f Files) RequiredAlternatives() [][]string {
	if f.Cert != "" {
		return [][]string{{f.Cert}, {f.Key}}
	}
	return [][]string{f.Roots}
}

// AuthoritiesFolder returns the folder of the first candidate for the CA certificates; "" if f is a
// certificate with its key. If this folder exists, the other candidates are ignored, whatever it
// contains.
func (f Files) AuthoritiesFolder() string {
	if len(f.Roots) == 0 {
		return ""
	}
	return filepath.Dir(f.Roots[0])
}

// ExistingFiles returns the existing files; of the candidates for authorities, it returns only
// those in use. If a required file is missing, the error is fs.ErrNotExist and names the file.
func (f Files) ExistingFiles() (Files, error) {
	if f.Cert != "" {
		for _, path := range f.AllPaths() {
			if _, err := os.Stat(path); err != nil {
				return Files{}, err
			}
		}
		return f, nil
	}
	i := 0
	if _, err := os.Lstat(f.AuthoritiesFolder()); errors.Is(err, fs.ErrNotExist) {
		i = 1 // NAME-cacert does not exist: use the folder of the credential NAME
	}
	if _, err := os.Stat(f.Roots[i]); err != nil {
		return Files{}, err
	}
	found := Files{Roots: f.Roots[i : i+1]}
	if _, err := os.Stat(f.CRL[i]); !errors.Is(err, fs.ErrNotExist) {
		found.CRL = f.CRL[i : i+1]
	}
	return found, nil
}

// CheckOwners returns an error if a user other than root and this process's could replace a file,
// because that user owns the file, its folder or, for a symbolic link, the folder of the target.
func (f Files) CheckOwners() error {
	for _, path := range f.AllPaths() {
		final, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		folder := filepath.Dir(path)
		for _, owned := range []string{final, filepath.Dir(final), folder, filepath.Dir(folder)} {
			if err := ownership.CheckFile(owned, 0, os.Geteuid()); err != nil {
				return err
			}
		}
	}
	return nil
}
