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
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/exposure"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// relayCacheName is the file in the state directory with the resources of the upstream server that
// Envoy accepted last.
const relayCacheName = "xds-cache"

// upstreamOf returns the upstream server of a configuration.
func upstreamOf(c *config.Config) relay.Upstream {
	d, i := c.Discovery, c.Identity
	u := relay.Upstream{Addresses: d.Addresses, ConnectTimeout: d.ConnectTimeout,
		ClusterID: c.Node.ClusterID, Namespace: c.Node.Namespace,
		ServiceAccount: c.Node.ServiceAccount}
	if !d.UsesTLS() {
		return u
	}
	u.TLS, u.RootFile = true, cmp.Or(d.RootCAFile, i.RootCAFile)
	u.ServerName, u.ServerIdentity = d.ServerName, d.PilotIdentity
	switch {
	case d.Auth == "mtls" && i.ProvCertDir == "":
		u.UseWorkloadCertificate = true
	case d.Auth == "mtls" || i.TokenFile == "" && i.ProvCertDir != "":
		u.CertFile = filepath.Join(i.ProvCertDir, "cert-chain.pem")
		u.KeyFile = filepath.Join(i.ProvCertDir, "key.pem")
	default:
		u.TokenFile = i.TokenFile
	}
	return u
}

// newRelay returns the relay to the upstream server, which serves no stream unless an upstream
// server is configured. resolver may be nil. listeners is notified when Envoy has accepted
// listeners.
func newRelay(b *base, c *config.Config, own func(uid uint32) bool, w *workloadIdentity,
	resolver *dns.Server, grpc *grpcBootstrap, listeners chan<- struct{},
) *relay.Server {
	options := relay.Options{Upstream: upstreamOf(c), InUse: w.inUse, Conditions: b.board,
		Logger:      b.logOf("relay"),
		UserAgent:   "outriderd/" + b.options.Version,
		RedactError: envoy.RedactMessage, Certificate: w.certificate,
		EnvoyPID:        func(from net.Addr) int32 { return xds.PeerOfAddress(from).PID },
		IsEnvoy:         func(from net.Addr) bool { return own(xds.PeerOfAddress(from).UID) },
		ApplicationNode: grpc.node.Load,
		OnListeners:     func() { notify(listeners) },
		ExtraRoots:      w.AuthorityRoots,
		Subscriptions: []relay.Subscription{{TypeURL: resource.ProxyConfigType,
			Apply: w.applyProxyConfig}}}
	if resolver != nil {
		options.Subscriptions = append(options.Subscriptions,
			relay.Subscription{TypeURL: resource.NameTableType, Apply: applyNameTable(resolver)})
	}
	if c.Discovery.Cache {
		options.Cache = relay.OpenCache(filepath.Join(c.Paths.StateDir, relayCacheName), b.board)
	}
	server := relay.New(options)
	server.SetCacheMaxAge(c.Discovery.CacheMaxAge)
	return server
}

// applyCached applies the resources for the agent itself, such as the name table of its DNS proxy,
// that an earlier run received from the upstream server.
func applyCached(server *relay.Server, node config.Node) {
	for _, typeURL := range []string{resource.ProxyConfigType, resource.NameTableType} {
		server.ApplyCachedResources(node.ServiceNode(), typeURL)
	}
}

// upstream selects the discovery server for Envoy: the embedded or the upstream server.
type upstream struct {
	relay     *relay.Server
	xdsSwitch *xds.ServiceSwitch
	identity  *identity.Manager
}

// offer makes new streams use the upstream server of a configuration, or the embedded server if it
// has none.
func (u *upstream) offer(c *config.Config) {
	u.xdsSwitch.UseRelay(len(c.Discovery.Addresses) > 0)
	u.relay.SetUpstreamOfNewStreams(upstreamOf(c))
}

// configure makes existing streams use the upstream server of a configuration as well, and applies
// the other settings of the relay.
func (u *upstream) configure(c *config.Config) {
	u.offer(c)
	u.relay.SetCacheMaxAge(c.Discovery.CacheMaxAge)
	u.relay.SetUpstream(upstreamOf(c))
	if len(c.Discovery.Addresses) == 0 {
		u.identity.SetTrustBundle(resource.ProxyConfigType, nil)
	}
}

// applyProxyConfig makes Envoy trust the roots in the upstream server's ProxyConfig, in addition to
// those of the identity provider.
func (w *workloadIdentity) applyProxyConfig(resources []*anypb.Any, _ []string) error {
	for _, one := range resources {
		var proxy meshapi.ProxyConfig
		if err := one.UnmarshalTo(&proxy); err != nil {
			return fmt.Errorf("decode a ProxyConfig: %w", err)
		}
		var roots []*x509.Certificate
		if all := proxy.GetCaCertificatesPem(); len(all) > 0 {
			var err error
			if roots, err = pki.ParseRoots(pki.PEMInput{File: "ProxyConfig of the upstream server",
				PEM: []byte(strings.Join(all, "\n"))}, time.Now()); err != nil {
				return err
			}
		}
		w.SetTrustBundle(resource.ProxyConfigType, roots)
	}
	return nil
}

// certificate returns the current certificate of the identity provider.
func (w *workloadIdentity) certificate() (*tls.Certificate, error) {
	pair := w.KeyPair()
	if pair == nil {
		return nil, errors.New("the workload has no certificate yet")
	}
	certificate, err := tls.X509KeyPair(pair.ChainPEM, pair.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("cannot use the workload certificate: %w", err)
	}
	return &certificate, nil
}

// meshInForce reports whether the mesh configuration is in force. While an upstream server is in
// use, it ignores the embedded discovery server.
type meshInForce struct {
	state     *reloadState
	discovery *discovery.Server
	unbound   *ports.UnboundListeners
	exposure  *exposure.Checker
}

// closed returns why the workload must not count as ready: the embedded discovery server serves no
// resources, the live Envoy has bound no listener of the mesh, or a port can be reached without the
// required mutual TLS. Otherwise it returns "".
func (m meshInForce) closed() string {
	why := ""
	if len(m.state.InForce().Config.Discovery.Addresses) == 0 {
		why = cmp.Or(m.discovery.ResourcesWithheldReason(), m.unbound.NotReadyReason())
	}
	return cmp.Or(why, m.exposure.NotReadyReason())
}
