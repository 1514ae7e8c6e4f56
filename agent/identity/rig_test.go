package identity_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/scripts/parts"
)

// deadline bounds waits for actions that take milliseconds on an idle machine.
const deadline = 60 * time.Second

// rig is a running Manager and the folder with its certificate files.
type rig struct {
	*identity.Manager
	t     testing.TB
	board *condition.Registry
	feed  *resource.Feed
	dir   string
	root  *pkitest.Authority

	bundleURLs []string // set before the Manager runs
}

// newRig starts a Manager that reads certificate files in the rig's folder. The files do not exist
// unless change writes them (issue). change may also change the options.
func newRig(t testing.TB, change func(*rig, *identity.Options)) *rig {
	t.Helper()
	r := &rig{t: t, board: condition.NewRegistry(), dir: t.TempDir()}
	r.root = pkitest.NewAuthority(t, "root", nil)
	options := identity.Options{
		Conditions: r.board,
		Watcher:    watch.NewNotifier(watch.Delays{}, nil),
		Settings:   identity.Settings{Identity: r.files()},
	}
	if change != nil {
		change(r, &options)
	}
	r.Manager = identity.New(options)
	r.SetBundleURLs(r.bundleURLs)
	r.feed, _ = r.Feed(nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) files() config.Identity {
	return config.Identity{Provider: "files", CertFile: r.path("cert.pem"),
		KeyFile: r.path("key.pem"), RootCAFile: r.path("root.pem")}
}

// issue writes a new certificate, its key and the root.
func (r *rig) issue(lifetime time.Duration) (chain []byte) {
	r.t.Helper()
	chain, key := r.root.Issue(r.t, pkitest.LeafTemplate("web", lifetime))
	r.write("cert.pem", chain)
	r.write("key.pem", key)
	r.write("root.pem", pkitest.PEM(r.root.Certificate))
	return chain
}

func (r *rig) write(name string, text []byte) {
	r.t.Helper()
	next := r.path(name + ".next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(next, r.path(name)); err != nil {
		r.t.Fatal(err)
	}
}

// secret returns a published secret, nil if there is none.
func (r *rig) secret(name string) *tlsv3.Secret {
	r.t.Helper()
	snapshot, _ := r.feed.Current()
	published := snapshot.Get(resource.Key{Type: resource.SecretType, Name: name})
	if published == nil {
		return nil
	}
	secret := &tlsv3.Secret{}
	if err := proto.Unmarshal(published.EncodedMessage(), secret); err != nil {
		r.t.Fatal(err)
	}
	return secret
}

// chain returns the certificate chain in a published secret.
func (r *rig) chain(name string) string {
	return string(r.secret(name).GetTlsCertificate().GetCertificateChain().GetInlineBytes())
}

// roots returns the published roots.
func (r *rig) roots() string {
	context := r.secret(identity.RootCASecret).GetValidationContext()
	return string(context.GetTrustedCa().GetInlineBytes())
}

// await waits until done returns true. It calls done after each change of the feed.
func (r *rig) await(what string, done func() bool) {
	r.t.Helper()
	end := time.After(deadline)
	for {
		_, next := r.feed.Current()
		if done() {
			return
		}
		select {
		case <-next:
		case <-end:
			r.t.Fatalf("not within %v: %s; conditions: %v", deadline, what, r.board.Conditions())
		}
	}
}

// awaitChain waits until the certificate chain is published under a name.
func (r *rig) awaitChain(name string, chain []byte) {
	r.t.Helper()
	r.await(name+" is published", func() bool { return r.chain(name) == string(chain) })
}

// awaitCondition waits until a condition is active whose sentence contains text.
func (r *rig) awaitCondition(code, text string) {
	r.t.Helper()
	parts.Eventually(r.t, deadline, "condition "+code+" with "+text, func() bool {
		return slices.ContainsFunc(r.board.Conditions(), func(c condition.Condition) bool {
			return c.Code == code && strings.Contains(c.Sentence, text)
		})
	})
}

// checkPair fails the test if the published certificate and key of a secret do not match.
func (r *rig) checkPair(name string) {
	r.t.Helper()
	certificate := r.secret(name).GetTlsCertificate()
	if certificate == nil {
		return
	}
	_, err := tls.X509KeyPair(certificate.GetCertificateChain().GetInlineBytes(),
		certificate.GetPrivateKey().GetInlineBytes())
	if err != nil {
		r.t.Error(err)
	}
}

// roots returns the certificates of authorities.
func roots(authorities ...*pkitest.Authority) []*x509.Certificate {
	var all []*x509.Certificate
	for _, a := range authorities {
		all = append(all, a.Certificate)
	}
	return all
}

func pemOf(certificates ...*x509.Certificate) string { return string(pkitest.PEM(certificates...)) }
