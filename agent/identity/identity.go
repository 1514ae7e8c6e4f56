// Package identity manages the secrets that Envoy requests over SDS: the workload's certificate
// ("default"), the roots it trusts ("ROOTCA"), certificates and roots in files that the name of the
// secret lists ("file-cert:CERT~KEY", "file-root:CA"), and those of package credential
// ("kubernetes://NAME"). A pair is a certificate with its key.
//
// A worker goroutine per secret reads its files or has its certificate issued, and reports each
// version to the [Manager], which publishes it in a [resource.Feed]:
//
//	files  ── read ────┐
//	                   ├─ report ─→ Manager ─→ Feed ─→ SDS
//	Issuer ── renew ───┤               └─────→ stores (output_dir, state)
//	SPIRE  ── observe ─┘ shown, not published: Envoy has it from SPIRE
//
// Invariants:
//   - A published pair matches: a certificate is never published with the key of another one.
//   - A published version remains until a newer valid one exists. An error never removes it. If new
//     settings are refused, the secrets that only they provide are removed.
//   - No lock is held during I/O: a mount that hangs delays only the secrets in its files.
//   - Renewal is due by the wall clock or the monotonic clock, whichever is earlier; timers are
//     checked at least every minute, so that suspended machines and clock jumps are noticed.
package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity/pki"
)

// The secrets of the workload.
const (
	DefaultSecret = "default"
	RootCASecret  = "ROOTCA"
)

// Prefixes of the names of secrets whose files the name lists.
const (
	fileCertPrefix = "file-cert:"
	fileRootPrefix = "file-root:"
)

// SecretFiles are the paths of a certificate chain, its key, root certificates and their revocation
// lists. An empty path means that there is no such file.
type SecretFiles struct{ Cert, Key, Root, CRL string }

// empty reports whether no path is set.
func (f SecretFiles) empty() bool { return f == SecretFiles{} }

// Errors of secrets that nothing provides.
var (
	errNoProvider = errors.New("no provider has this secret; set [identity] provider, " +
		"or correct the name in the mesh configuration")
	errTooMany = fmt.Errorf("Envoy requests more than %d secrets in files; "+
		"use fewer names in the mesh configuration", maxRequested)
	errNoRoots = errors.New("no root certificates are configured; set [identity] root_ca_file")
)

// parseName returns the files that the name of a secret lists.
func parseName(name string) (SecretFiles, error) {
	if pair, ok := strings.CutPrefix(name, fileCertPrefix); ok {
		cert, key, _ := strings.Cut(pair, "~")
		if filepath.IsAbs(cert) && filepath.IsAbs(key) {
			return SecretFiles{Cert: cert, Key: key}, nil
		}
		return SecretFiles{}, fmt.Errorf("the secret's name is not of the form %s/CERT~/KEY",
			fileCertPrefix)
	}
	if root, ok := strings.CutPrefix(name, fileRootPrefix); ok {
		if filepath.IsAbs(root) {
			return SecretFiles{Root: root}, nil
		}
		return SecretFiles{}, fmt.Errorf("the secret's name is not of the form %s/ROOTS",
			fileRootPrefix)
	}
	return SecretFiles{}, errNoProvider
}

// SecretSource is where a secret comes from.
type SecretSource string

// The sources.
const (
	FromFiles  SecretSource = "files"
	FromIstiod SecretSource = "istiod"
	fromCache  SecretSource = "cache" // SealedStore, written by an earlier run
	fromSpire  SecretSource = "spire" // Envoy receives the secret from SPIRE, not from the agent
)

// IssuedCertificate is a certificate from an authority.
type IssuedCertificate struct {
	Pair     *pki.Pair
	Roots    []*x509.Certificate // that the authority sent
	Obtained time.Time           // when the agent received it, by this machine's wall clock
	Source   SecretSource
}

// Issuer obtains the workload's certificate from an authority. Issue makes one attempt, possibly
// with quick retries; the Manager repeats it. trusted are roots that the mesh announced, or none;
// current is the certificate to be replaced, nil if there is none.
type Issuer interface {
	Issue(ctx context.Context, trusted []*x509.Certificate, current *pki.Pair) (*IssuedCertificate,
		error)
	Files() []string // files whose change makes the Manager repeat a failed attempt
}

// Watcher watches files. watch.Notifier implements it.
type Watcher interface {
	Run(ctx context.Context) error
	// Watch calls changed once when it begins to watch paths, and then whenever one of them may
	// have changed, until stop is called.
	Watch(paths []string, changed func()) (stop func())
}

// Settings are the parts of the configuration that may change while the Manager runs.
type Settings struct {
	config.Identity
	Issuer         Issuer       // for provider "istiod"; nil: another provider; compared by ==
	Sealed         *SealedStore // nil: the certificate is not stored across reboots
	StaleStoreFile string       // file of a SealedStore that is no longer configured, to remove; "": none
}

// files returns the files of provider "files".
func (s Settings) files() SecretFiles {
	if s.Provider != "files" {
		return SecretFiles{}
	}
	return SecretFiles{Cert: s.CertFile, Key: s.KeyFile, Root: s.RootCAFile}
}

// spire reports whether Envoy obtains the secrets itself.
func (s Settings) spire() bool { return s.Provider == "spire" }

// output returns the folder to which the certificate is written, nil if none is configured.
func (s Settings) output() *OutputFiles {
	if s.OutputDir == "" {
		return nil
	}
	return &OutputFiles{Dir: s.OutputDir}
}

// SecretInfo describes a secret for status output. It contains no key material.
type SecretInfo struct {
	Name              string
	Source            SecretSource
	SpiffeID          string
	Subject           string
	Names             []string // DNS names and addresses
	Issuer            string
	Serial            string
	NotBefore         time.Time
	NotAfter          time.Time
	Renewal           time.Time   // when the agent renews the secret; zero: when its file changes
	Problem           string      // why there is no newer version; "" if there is no problem
	File              string      // file of the certificate or the roots; "": none
	Users             []string    // objects of the mesh configuration that use the secret, with FILE:LINE
	Condition         string      // code of the condition that lists the secret; "": none
	ConditionSentence string      // part of the condition's sentence that is about the secret
	Stored            StoredState // of the workload's certificate; "" for other secrets
}

// StoredState is whether the workload's certificate is stored on disk for the next boot.
type StoredState string

// The values of StoredState.
const (
	NotStored    StoredState = ""        // no SealedStore is configured
	StorePending StoredState = "pending" // not written yet
	StoreSealed  StoredState = "sealed"  // written, encrypted by SealedStore
)

// material is one version of a secret. It is immutable.
type material struct {
	pair     *pki.Pair           // nil: roots only
	roots    []*x509.Certificate // of a secret with a pair: roots that the authority sent with it
	revoked  []byte              // revocation lists of roots, PEM; nil: none
	source   SecretSource
	obtained time.Time
	renewal  time.Time // when the agent renews the certificate; zero: never
	issuer   Issuer    // nil: the version is from files or SPIRE
}

// same reports whether two versions have the same certificates.
func (v *material) same(as *material) bool {
	return slices.EqualFunc(v.certificates(), as.certificates(), (*x509.Certificate).Equal)
}

func (v *material) certificates() []*x509.Certificate {
	if v.pair != nil {
		return v.pair.Chain
	}
	return v.roots
}

// validity returns when a version becomes valid and when it expires.
func (v *material) validity() (from, until time.Time) {
	if v.pair != nil {
		return v.pair.Leaf().NotBefore, v.pair.NotAfter()
	}
	for _, root := range v.roots {
		if root.NotAfter.After(until) {
			from, until = root.NotBefore, root.NotAfter
		}
	}
	return from, until
}

// info describes a version.
func (v *material) info(name string) SecretInfo {
	about := SecretInfo{Name: name, Source: v.source, Renewal: v.renewal}
	about.NotBefore, about.NotAfter = v.validity()
	var first *x509.Certificate
	switch {
	case v.pair != nil:
		first = v.pair.Leaf()
		about.SpiffeID = v.pair.SpiffeID()
		about.Names = slices.Clone(first.DNSNames)
		for _, address := range first.IPAddresses {
			about.Names = append(about.Names, address.String())
		}
	case len(v.roots) > 0:
		first = v.roots[0]
	default:
		return about
	}
	about.Subject, about.Issuer = first.Subject.String(), first.Issuer.String()
	about.Serial = first.SerialNumber.Text(16)
	return about
}
