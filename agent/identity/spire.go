package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/identity/pki"
)

// observeInterval is the period between requests to Envoy for the secrets that it has from SPIRE.
const observeInterval = 2 * time.Second

// errNotSeen is the error of a secret that Envoy should have from SPIRE but does not have.
var errNotSeen = errors.New("Envoy has not received the secret from SPIRE; check that the SPIRE " +
	"agent " +
	"serves [identity] spire_socket and has an entry for Envoy's user")

// ReadEnvoySecretFunc returns the certificates of a secret that Envoy has: a chain or roots, nil if
// none.
type ReadEnvoySecretFunc func(ctx context.Context, name string) ([]*x509.Certificate, error)

// observe reports the secret that Envoy has from SPIRE, until ctx ends. The key is never read.
func (m *Manager) observe(ctx context.Context, name string, report report) {
	for {
		version, err := m.observed(ctx, name)
		if ctx.Err() != nil {
			return
		}
		report(version, err)
		if backoff.Sleep(ctx, observeInterval) != nil {
			return
		}
	}
}

func (m *Manager) observed(ctx context.Context, name string) (*material, error) {
	found, err := m.options.ReadEnvoySecret(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cannot read Envoy's secrets: %w", err)
	}
	if len(found) == 0 {
		return nil, errNotSeen
	}
	version := &material{source: fromSpire, obtained: m.options.Now()}
	if name == RootCASecret {
		version.roots = found
		return version, nil
	}
	version.pair = &pki.Pair{Chain: found, ChainPEM: pki.EncodeCertificates(found)}
	return version, version.pair.CheckTime(version.obtained)
}
