// Package mesh holds what Istio's MeshConfig says to the discovery server, and reads the file.
package mesh

import (
	"time"

	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Config is what counts for everything that is translated. It is immutable and shared. Defaults are Istio's.
type Config struct {
	RootNamespace string // of objects that count in every namespace

	// What objects that do not say who sees them say; nil is everyone.
	ServiceExportTo, RoutingExportTo, RuleExportTo []string

	AllowAny           bool          // requests to what nobody knows are passed on to where they were addressed
	InboundPassthrough bool          // the same of what comes in for a port that nobody gave
	ProtocolDetection  time.Duration // how long a connection may be silent before it is taken for TCP; 0 = for ever
	ConnectTimeout     time.Duration
	Keepalive          *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive // nil: none
	Retry              *networking.HTTPRetry                                       // of routes that say none; nil: Istio's own
	Locality           *networking.LocalityLoadBalancerSetting                     // nil: localities do not count
	UpgradeHTTP2       bool                                                        // requests to HTTP services are sent as HTTP/2
	DNSRefresh         time.Duration
	InboundTLS         TLS // minima of listeners that end TLS in a sidecar
	ServerTLS          TLS // of those that end the TLS of a Gateway
	PathNormalization  meshapi.MeshConfig_ProxyPathNormalization_NormalizationType
	InboundStatName    string // pattern of inbound clusters' statistics; "" = their names
	OutboundStatName   string // of outbound ones
	AccessLog          AccessLog
	TrustDomain        string
	TrustDomainAliases []string
	CACertificates     []string // PEM; further roots that peers are trusted by
}

// TLS are minima; zero values are Istio's.
type TLS struct {
	MinVersion   meshapi.MeshConfig_TLSConfig_TLSProtocol
	CipherSuites []string
	ECDHCurves   []string
}

// Default is a mesh without a file.
func Default() *Config {
	return &Config{RootNamespace: "istio-system", AllowAny: true, InboundPassthrough: true, ConnectTimeout: 10 * time.Second,
		DNSRefresh: time.Minute, TrustDomain: "cluster.local"}
}
