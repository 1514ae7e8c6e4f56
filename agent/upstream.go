package agent

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/relay"
)

// relayCacheName is the file in the state directory with what Envoy accepted from upstream last.
const relayCacheName = "xds-cache"

// upstreamOf returns the upstream server of a configuration.
func upstreamOf(c *config.Config) relay.Upstream {
	d, i := c.Discovery, c.Identity
	u := relay.Upstream{Address: d.Address, ConnectTimeout: d.ConnectTimeout,
		ClusterID: c.Node.ClusterID}
	if !d.TLS() {
		return u
	}
	u.TLS, u.RootFile = true, cmp.Or(d.RootCAFile, i.RootCAFile)
	u.ServerName, u.Identity = d.ServerName, d.PilotIdentity
	switch {
	case d.Auth == "mtls" && i.ProvCertDir == "":
		u.Workload = true
	case d.Auth == "mtls" || i.TokenFile == "" && i.ProvCertDir != "":
		u.CertFile = filepath.Join(i.ProvCertDir, "cert-chain.pem")
		u.KeyFile = filepath.Join(i.ProvCertDir, "key.pem")
	default:
		u.TokenFile = i.TokenFile
	}
	return u
}

// newRelay returns the relay to the upstream server. It serves no stream unless one is configured.
func (a *Agent) newRelay(c *config.Config) *relay.Server {
	options := relay.Options{Upstream: upstreamOf(c), Board: a.board, Logger: a.logOf("relay"),
		Words: envoy.RedactMessage, Certificate: a.workloadCertificate,
		Roots: func() []*x509.Certificate { return a.identity.AnnouncedRoots() }}
	if c.Discovery.Cache {
		options.Cache = relay.OpenCache(filepath.Join(c.Paths.StateDir, relayCacheName), a.board)
	}
	return relay.New(options)
}

// offerUpstream makes new streams use the upstream server of a configuration, or the embedded
// server if it has none.
func (a *Agent) offerUpstream(c *config.Config) {
	a.xdsSwitch.UseRelay(c.Discovery.Address != "")
	a.relay.Offer(upstreamOf(c))
}

// useUpstream does the same for all streams of the relay.
func (a *Agent) useUpstream(c *config.Config) {
	a.offerUpstream(c)
	if c.Discovery.Address != "" {
		a.relay.Configure(upstreamOf(c))
	}
}

// workloadCertificate returns the current certificate of the identity provider.
func (a *Agent) workloadCertificate() (*tls.Certificate, error) {
	pair := a.identity.Pair()
	if pair == nil {
		return nil, errors.New("the workload has no certificate yet")
	}
	certificate, err := tls.X509KeyPair(pair.ChainPEM, pair.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("workload certificate: %w", err)
	}
	return &certificate, nil
}

// embeddedMesh implements driver.Mesh. The files of the embedded server do not count while an
// upstream server is in use.
type embeddedMesh struct{ *Agent }

// Closed returns why the embedded server serves nothing, "" if it serves or is not in use.
func (m embeddedMesh) Closed() string {
	if m.reloader.InForce().Config.Discovery.Address != "" {
		return ""
	}
	return m.discovery.Closed()
}
