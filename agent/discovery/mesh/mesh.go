// Package mesh defines the parts of Istio's MeshConfig that the discovery server uses.
package mesh

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Config is the mesh-wide configuration of translation. It is immutable and shared. Defaults are
// Istio's.
type Config struct {
	RootNamespace string // namespace of objects that apply to all namespaces

	// default exportTo; nil means all namespaces
	ServiceExportTo, RoutingExportTo, RuleExportTo []string

	// forward requests to unknown hosts to their original destination
	AllowAny     bool
	OutboundPort uint32 // of captured outbound connections
	InboundPort  uint32 // of captured inbound connections
	// time to wait for the first bytes before assuming TCP; 0: unlimited
	ProtocolDetection time.Duration
	ConnectTimeout    time.Duration
	DNSRefresh        time.Duration
	Keepalive         *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive // nil: none
	// default of routes; nil: Istio's
	Retry *networking.HTTPRetry
	// nil: not set
	Locality *networking.LocalityLoadBalancerSetting
	// send requests to HTTP services as HTTP/2
	UpgradeHTTP2      bool
	PathNormalization meshapi.MeshConfig_ProxyPathNormalization_NormalizationType
	TrustedProxies    uint32 // in front of gateways, whose x-forwarded-for is trusted
	AccessLog         AccessLog

	// defaults of servers and of services in files; nil: not set
	TLS                *meshapi.MeshConfig_TLSConfig
	MutualTLS          *meshapi.MeshConfig_TLSConfig // of mutual TLS in the mesh; nil: not set
	AutoMutualTLS      bool                          // between workloads of the mesh with an identity
	TrustDomain        string                        // of service accounts
	TrustDomainAliases []string                      // domains of equivalent workloads
	// additional trusted CA certificates (PEM) and URLs of SPIFFE bundles with such, sorted
	Authorities, Bundles []string
	// trust domains besides the mesh's whose workloads are accepted (caCertificates), sorted
	OtherTrustDomains []string
	// external authorizers by name (extensionProviders)
	Authorizers map[string]*meshapi.MeshConfig_ExtensionProvider

	// Properties of the machine, not of the file:
	SystemRoots string // file with the system's CA certificates
	Reserved    []Reserved
	Credentials Credentials
}

// Credentials locates the certificates that Gateways and DestinationRules name.
type Credentials struct {
	Folder  string // directory; "" if they are on another host
	Cluster string // serves them over SDS
}

// Default returns the configuration without a mesh config file.
func Default() *Config {
	return &Config{RootNamespace: "istio-system", AllowAny: true, OutboundPort: 15001,
		InboundPort: 15006, ConnectTimeout: 10 * time.Second, DNSRefresh: time.Minute,
		TrustDomain: "cluster.local", AutoMutualTLS: true}
}

// Equal reports whether two configurations are equal.
func (m *Config) Equal(other *Config) bool {
	a, b := *m, *other
	for _, pair := range [][2]proto.Message{{a.Keepalive, b.Keepalive}, {a.Retry, b.Retry},
		{a.Locality, b.Locality}, {a.TLS, b.TLS},
		{a.MutualTLS, b.MutualTLS}} {
		if !proto.Equal(pair[0], pair[1]) {
			return false
		}
	}
	a.Keepalive, a.Retry, a.Locality, a.TLS = b.Keepalive, b.Retry, b.Locality, b.TLS
	a.MutualTLS = b.MutualTLS
	if !maps.EqualFunc(a.Authorizers, b.Authorizers,
		func(x, y *meshapi.MeshConfig_ExtensionProvider) bool { return proto.Equal(x, y) }) {
		return false
	}
	a.Authorizers = b.Authorizers
	return reflect.DeepEqual(a, b)
}

// SameMutualTLS reports whether two configurations are equal in what decides on mutual TLS in the
// mesh: where it applies, its parameters, and who is trusted.
func (m *Config) SameMutualTLS(other *Config) bool {
	return m.RootNamespace == other.RootNamespace && m.AutoMutualTLS == other.AutoMutualTLS &&
		proto.Equal(m.MutualTLS, other.MutualTLS) &&
		slices.Equal(m.TrustDomains(), other.TrustDomains()) &&
		slices.Equal(m.Authorities, other.Authorities) && slices.Equal(m.Bundles, other.Bundles)
}
