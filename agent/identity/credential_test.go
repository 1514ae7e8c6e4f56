package identity_test

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"testing"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
)

// newCredentialRig returns a rig without an identity provider, with an empty credential "web" in
// the folder of credentials.
func newCredentialRig(t *testing.T) *rig {
	t.Helper()
	return newRig(t, func(r *rig, options *identity.Options) {
		options.Settings = identity.Settings{Identity: config.Identity{CredentialsDir: r.dir}}
		if err := os.Mkdir(r.path("web"), 0o755); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCredential_PairIsReplacedWithItsKey(t *testing.T) {
	t.Parallel()
	r := newCredentialRig(t)
	secret := credential.KeyPairSecretName("web")
	r.Subscribe([]string{secret})
	r.awaitCondition(identity.CodeUnavailable, "web/tls.crt: no such file")
	r.awaitCondition(identity.CodeUnavailable, "credential web: ")
	chain, key := r.root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	r.write("web/tls.crt", chain)
	r.awaitCondition(identity.CodeUnavailable, "web/tls.key: no such file")
	r.write("web/tls.key", key)
	r.awaitChain(secret, chain)
	r.checkPair(secret)
	next, nextKey := r.root.Issue(t, pkitest.LeafTemplate("web", 2*time.Hour))
	r.write("web/tls.crt", next)
	r.awaitCondition(identity.CodeNotRenewed, "web/tls.crt")
	if r.chain(secret) != string(chain) {
		t.Error("a certificate without its key is published")
	}
	r.write("web/tls.key", nextKey)
	r.awaitChain(secret, next)
	r.checkPair(secret)
}

func TestCredential_AuthoritiesAndRevocations(t *testing.T) {
	t.Parallel()
	r := newCredentialRig(t)
	secret := credential.RootsSecretName("web")
	r.Subscribe([]string{secret})
	published := func() (roots, revoked string) {
		check := r.secret(secret).GetValidationContext()
		return string(check.GetTrustedCa().GetInlineBytes()), string(check.GetCrl().GetInlineBytes())
	}
	own := pkitest.NewAuthority(t, "own", nil)
	r.write("web/ca.crt", pkitest.PEM(own.Certificate))
	r.await("the credential's", func() bool {
		roots, revoked := published()
		return roots == pemOf(own.Certificate) && revoked == ""
	})
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour),
	}, own.Certificate, own.Key)
	if err != nil {
		t.Fatal(err)
	}
	list := pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
	r.write("web/ca.crl", list)
	r.await("with a list of revoked ones", func() bool {
		_, revoked := published()
		return revoked == string(list)
	})
	if err := os.Mkdir(r.path("web-cacert"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.write("web-cacert/ca.crt", pkitest.PEM(r.root.Certificate))
	r.await("those of web-cacert", func() bool {
		roots, revoked := published()
		return roots == pemOf(r.root.Certificate) && revoked == ""
	})
	r.write("web-cacert/ca.crl", list)
	r.await("a list of web-cacert", func() bool {
		_, revoked := published()
		return revoked == string(list)
	})
	removed := time.Now()
	if err := os.Remove(r.path("web-cacert/ca.crl")); err != nil {
		t.Fatal(err)
	}
	r.await("without the list", func() bool {
		_, revoked := published()
		return revoked == ""
	})
	if took := time.Since(removed); took < time.Second {
		t.Errorf("a list that may be replaced is without effect after %s", took)
	}
	r.write("web-cacert/ca.crl", []byte("no list"))
	r.awaitCondition(identity.CodeNotRenewed, "web-cacert/ca.crl: ")
}

func TestCredential_IsRefused(t *testing.T) {
	t.Parallel()
	r := newCredentialRig(t)
	chain, key := r.root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	r.write("web/tls.crt", chain)
	r.write("web/tls.key", key)
	if err := os.Chmod(r.path("web"), 0o777); err != nil {
		t.Fatal(err)
	}
	secret := credential.KeyPairSecretName("web")
	r.Subscribe([]string{secret, credential.KeyPairSecretName("../web")})
	r.awaitCondition(identity.CodeUnavailable, "chmod go-w")
	r.awaitCondition(identity.CodeUnavailable, "is not a valid credential name")
	if r.secret(secret) != nil {
		t.Error("a folder that everybody may write to is trusted")
	}
	if err := os.Chmod(r.path("web"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.awaitChain(secret, chain)
}

// A reload may change the folder of credentials while Envoy is subscribed to one.
func TestCredential_FolderOfTheSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *rig, o *identity.Options) { o.Settings = identity.Settings{} })
	secret := credential.KeyPairSecretName("web")
	r.Subscribe([]string{secret})
	r.awaitCondition(identity.CodeUnavailable, "no provider")
	for _, folder := range []string{"one", "two"} {
		if err := os.MkdirAll(r.path(folder+"/web"), 0o755); err != nil {
			t.Fatal(err)
		}
		chain, key := r.root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
		r.write(folder+"/web/tls.crt", chain)
		r.write(folder+"/web/tls.key", key)
		r.Configure(identity.Settings{Identity: config.Identity{CredentialsDir: r.path(folder)}})
		r.awaitChain(secret, chain)
	}
}
