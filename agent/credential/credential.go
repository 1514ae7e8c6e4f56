// Package credential locates and reads the certificates that Gateways and DestinationRules name
// (credentialName). A credential is a folder with the files of a Kubernetes secret:
//
//	DIR/NAME/tls.crt, tls.key           certificate chain and key
//	DIR/NAME-cacert/ca.crt, ca.crl      authorities and optional revocation lists; if there is no
//	DIR/NAME/ca.crt, ca.crl             such folder, those of the credential itself
//
// Its secrets have istiod's names: kubernetes://NAME and kubernetes://NAME-cacert.
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

// Cluster is the name of Envoy's cluster for the secrets of credentials, if those of the workload
// come from another server than the agent's.
const Cluster = "sds-credentials"

const (
	prefix      = "kubernetes://"
	rootsSuffix = "-cacert"
)

// maxName is the length of a DNS subdomain at most, which Kubernetes requires of a secret's name.
const maxName = 253

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// CheckName returns an error for a name that Kubernetes would not accept. A valid name is the name
// of a folder, and no path.
func CheckName(name string) error {
	if len(name) > maxName || !validName.MatchString(name) {
		return fmt.Errorf("%.60q is no name of a credential: it has other characters than a-z, 0-9, "+
			"- and ., or is too long", name)
	}
	return nil
}

// Pair returns the name of the secret with the certificate of a credential.
func Pair(name string) string { return prefix + name }

// Roots returns the name of the secret with a credential's authorities: NAME-cacert for credential
// NAME or NAME-cacert.
func Roots(name string) string {
	return prefix + strings.TrimSuffix(name, rootsSuffix) + rootsSuffix
}

// Is reports whether a secret belongs to a credential.
func Is(secret string) bool { return strings.HasPrefix(secret, prefix) }

// Title returns what a secret of a credential is called in sentences for people: "credential NAME",
// "credential NAME-cacert". ok is false for other secrets.
func Title(secret string) (title string, ok bool) {
	name, ok := strings.CutPrefix(secret, prefix)
	return "credential " + name, ok
}

// Files are the paths of a secret's files.
type Files struct {
	Cert, Key  string   // of a pair
	Roots, CRL []string // of authorities: of each, the first whose folder exists is used
}

// Locate returns the files of a secret in a directory of credentials.
func Locate(dir, secret string) (Files, error) {
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

// All returns all paths, including those that may not exist.
func (f Files) All() []string {
	if f.Cert != "" {
		return []string{f.Cert, f.Key}
	}
	return slices.Concat(f.Roots, f.CRL)
}

// Authorities returns the first path of authorities, "" for a pair.
func (f Files) Authorities() string {
	if len(f.Roots) == 0 {
		return ""
	}
	return f.Roots[0]
}

// Required returns lists of paths; of each list, one file must exist. The last is the usual
// location.
func (f Files) Required() [][]string {
	if f.Cert != "" {
		return [][]string{{f.Cert}, {f.Key}}
	}
	return [][]string{f.Roots}
}

// OwnFolder returns the folder of the first authorities, "" for a pair. If it exists, no others are
// used, whatever it holds.
func (f Files) OwnFolder() string {
	if len(f.Roots) == 0 {
		return ""
	}
	return filepath.Dir(f.Roots[0])
}

// Present returns the files that exist, of authorities those that are used. If files are missing,
// the error is fs.ErrNotExist and names one of them.
func (f Files) Present() (Files, error) {
	if f.Cert != "" {
		for _, path := range f.All() {
			if _, err := os.Stat(path); err != nil {
				return Files{}, err
			}
		}
		return f, nil
	}
	i := 0
	if _, err := os.Lstat(f.OwnFolder()); errors.Is(err, fs.ErrNotExist) {
		i = 1 // the folder of the credential itself
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

// CheckOwners returns an error if another user than root and the own one could replace a file: by
// owning it, its folder or, for a symbolic link, the folder of the file that it leads to.
func (f Files) CheckOwners() error {
	for _, path := range f.All() {
		final, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		folder := filepath.Dir(path)
		for _, owned := range []string{final, filepath.Dir(final), folder, filepath.Dir(folder)} {
			if err := ownership.Check(owned, 0, os.Geteuid()); err != nil {
				return err
			}
		}
	}
	return nil
}
