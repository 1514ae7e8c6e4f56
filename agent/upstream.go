package agent

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// relayCacheName is the file in the state directory with what Envoy accepted from upstream last.
const relayCacheName = "xds-cache"

// upstreamOf returns the upstream server of a configuration.
func upstreamOf(c *config.Config) relay.Upstream {
	d, i := c.Discovery, c.Identity
	u := relay.Upstream{Address: d.Address, ConnectTimeout: d.ConnectTimeout,
		ClusterID: c.Node.ClusterID, Namespace: c.Node.Namespace,
		ServiceAccount: c.Node.ServiceAccount}
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
	own := a.isOwn(c)
	options := relay.Options{Upstream: upstreamOf(c), Board: a.board, Logger: a.logOf("relay"),
		RedactError: envoy.RedactMessage, Certificate: a.workloadCertificate,
		PID:           func(from net.Addr) int32 { return xds.PeerOf(from).PID },
		Envoy:         func(from net.Addr) bool { return own(xds.PeerOf(from).UID) },
		Application:   a.grpcNode.Load,
		Listeners:     func() { a.exposure.Wake() },
		Roots:         func() []*x509.Certificate { return a.identity.AnnouncedRoots() },
		Subscriptions: []relay.Subscription{{TypeURL: resource.ProxyConfigType, Apply: a.applyProxyConfig}}}
	if c.DNS.Listen != "" {
		options.Subscriptions = append(options.Subscriptions,
			relay.Subscription{TypeURL: resource.NameTableType, Apply: a.applyNameTable})
	}
	if c.Discovery.Cache {
		options.Cache = relay.OpenCache(filepath.Join(c.Paths.StateDir, relayCacheName), a.board)
	}
	server := relay.New(options)
	server.SetCacheMaxAge(c.Discovery.CacheMaxAge)
	return server
}

// applyCached uses what an earlier run of the agent received from the upstream server for itself.
func (a *Agent) applyCached(node config.Node) {
	for _, typeURL := range []string{resource.ProxyConfigType, resource.NameTableType} {
		a.relay.ApplyCached(node.ServiceNode(), typeURL)
	}
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
	a.relay.SetCacheMaxAge(c.Discovery.CacheMaxAge)
	if c.Discovery.Address == "" {
		a.identity.SetTrustBundle(resource.ProxyConfigType, nil)
		return
	}
	a.relay.Configure(upstreamOf(c))
}

// applyProxyConfig trusts the roots of a ProxyConfig beside those of the identity provider.
func (a *Agent) applyProxyConfig(resources []*anypb.Any, _ []string) error {
	for _, one := range resources {
		var proxy meshapi.ProxyConfig
		if err := one.UnmarshalTo(&proxy); err != nil {
			return fmt.Errorf("decode a ProxyConfig: %w", err)
		}
		var roots []*x509.Certificate
		if all := proxy.GetCaCertificatesPem(); len(all) > 0 {
			var err error
			if roots, err = pki.ParseRoots(pki.Input{File: "ProxyConfig of the upstream server",
				PEM: []byte(strings.Join(all, "\n"))}, time.Now()); err != nil {
				return err
			}
		}
		a.identity.SetTrustBundle(resource.ProxyConfigType, roots)
	}
	return nil
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

// embeddedMesh implements epoch.Mesh. The files of the embedded server do not count while an
// upstream server is in use.
type embeddedMesh struct{ *Agent }

// Closed returns why the embedded server serves nothing, why the live Envoy serves nothing of it,
// or which port is reachable past mutual TLS; "" if nothing of this is so.
func (m embeddedMesh) Closed() string {
	why := ""
	if m.reloader.InForce().Config.Discovery.Address == "" {
		why = cmp.Or(m.discovery.Closed(), m.unbound.Closed())
	}
	return cmp.Or(why, m.exposure.Closed())
}
