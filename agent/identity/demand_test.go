package identity_test

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
)

// missingSecret maps an API type of xDS to what Envoy's admin interface shows while Envoy lacks a
// secret.
var missingSecret = map[string]struct{ query, text string }{
	// State of the world: an empty response does not end the wait of Envoy's listener.
	"GRPC": {"init_dump", "SdsApi "},
	// Incremental: the response names the secret as removed, so the listener starts without it and
	// closes connections.
	"DELTA_GRPC": {"stats?filter=downstream_context_secrets_not_ready", "not_ready: "},
}

// While no provider has a secret, Envoy shows that it lacks the secret, and a condition explains
// why. Once a provider has it, Envoy receives the secret on the same stream.
func TestSDS_SecretThatNobodyProvides(t *testing.T) {
	for api, shows := range missingSecret {
		t.Run(api, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(_ *rig, options *identity.Options) {
				options.Settings = identity.Settings{}
			})
			e := startSDSEnvoy(t, serveSDS(t, r), api, identity.DefaultSecret,
				identity.RootCASecret)
			chain, key := r.root.Issue(t, pkitest.LeafTemplate("client", time.Hour))
			pool := x509.NewCertPool()
			pool.AddCert(r.root.Certificate)
			r.awaitCondition(identity.CodeUnavailable, "ROOTCA: no provider has this secret")
			e.until("Envoy reports the missing secret", func() bool {
				if _, err := e.get(pool, chain, key); err == nil {
					t.Fatal("a connection without the secret")
				}
				got := e.Get("/" + shows.query)
				return strings.Contains(got, shows.text) && !strings.Contains(got, ": 0\n")
			})
			r.issue(time.Hour)
			r.Configure(identity.Settings{Identity: r.files()})
			e.until("the secret is served", func() bool {
				_, err := e.get(pool, chain, key)
				return err == nil
			})
			if strings.Contains(e.String(), "stream closed") {
				t.Error("a stream of SDS ended")
			}
		})
	}
}

// Files that Envoys request by name are read once for all Envoys, as long as one is subscribed.
func TestSDS_FilesByName(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, options *identity.Options) {
		r.issue(time.Hour)
		options.Settings = identity.Settings{}
	})
	pair := fmt.Sprintf("file-cert:%s~%s", r.path("cert.pem"), r.path("key.pem"))
	roots := "file-root:" + r.path("root.pem")
	socket := serveSDS(t, r)
	pool := x509.NewCertPool()
	pool.AddCert(r.root.Certificate)
	chain, key := r.root.Issue(t, pkitest.LeafTemplate("client", time.Hour))
	serves := func(e *sdsEnvoy, want []byte) {
		t.Helper()
		e.until("the pair", func() bool {
			got, err := e.get(pool, chain, key)
			return err == nil && bytes.Equal(pkitest.PEM(got), want)
		})
	}
	first := startSDSEnvoy(t, socket, "GRPC", pair, roots)
	second := startSDSEnvoy(t, socket, "DELTA_GRPC", pair, roots)
	renewed := r.issue(2 * time.Hour)
	serves(first, renewed)
	serves(second, renewed)
	if got := len(r.Secrets()); got != 2 {
		t.Errorf("%d secrets for two Envoys with the same names", got)
	}
	first.Kill()
	renewed = r.issue(3 * time.Hour)
	serves(second, renewed)
	second.Kill()
	second.until("nothing is read for nobody", func() bool { return len(r.Secrets()) == 0 })
}

// The agent does not serve a file that Envoy requests by name and that Envoy's user cannot read.
func TestNames_FilesThatEnvoyCannotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, options *identity.Options) {
		r.issue(time.Hour)
		options.EnvoyCannotReadReason = func(file *os.File) string {
			if file.Name() == r.path("key.pem") {
				return "user envoy cannot read " + file.Name()
			}
			return ""
		}
	})
	r.await("configured files, which only the agent reads", func() bool {
		return r.secret(identity.DefaultSecret) != nil
	})
	pair := fmt.Sprintf("file-cert:%s~%s", r.path("cert.pem"), r.path("key.pem"))
	r.Subscribe([]string{pair})
	r.awaitCondition(identity.CodeUnavailable, "user envoy cannot read")
	if r.secret(pair) != nil {
		t.Error("the pair is published")
	}
}
