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

// Config is the mesh-wide configuration of the translation. It is immutable and shared. Defaults
// are those of Istio.
type Config struct {
	RootNamespace string // namespace whose objects apply to all namespaces

	// default of exportTo for each kind; nil means all namespaces
	ServiceExportTo, VirtualServiceExportTo, DestinationRuleExportTo []string

	// AllowAnyOutbound forwards traffic to unknown destinations.
	AllowAnyOutbound bool
	// DynamicDNS forwards requests to unknown hosts to the addresses that DNS has for the host,
	// instead of their original destination. UnknownHostTLS is the TLS of these connections; nil:
	// plain text.
	DynamicDNS     bool
	UnknownHostTLS *networking.ClientTLSSettings
	OutboundPort   uint32 // port that receives captured outbound connections
	InboundPort    uint32 // port that receives captured inbound connections
	HTTPProxyPort  uint32 // port of the HTTP proxy for applications; 0: there is none
	// how long to wait for the first bytes of a connection before treating it as TCP; 0: unlimited
	ProtocolDetectionTimeout time.Duration
	ConnectTimeout           time.Duration
	DNSRefreshRate           time.Duration
	// default TCP keepalive; nil: none
	Keepalive *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive
	// default retries of routes; nil: Istio's default
	Retry *networking.HTTPRetry
	// default locality load balancing; nil: not set
	LocalityLB *networking.LocalityLoadBalancerSetting
	// requests to HTTP services are sent as HTTP/2
	UpgradeHTTP2      bool
	PathNormalization meshapi.MeshConfig_ProxyPathNormalization_NormalizationType
	// number of proxies in front of gateways whose x-forwarded-for is trusted
	NumTrustedProxies uint32
	AccessLog         AccessLog

	// default TLS parameters of servers, and of services whose certificates are in files; nil: not
	// set
	TLSDefaults *meshapi.MeshConfig_TLSConfig
	// TLS parameters of mutual TLS in the mesh; nil: not set
	MeshMTLS *meshapi.MeshConfig_TLSConfig
	// automatic mutual TLS between workloads of the mesh that have an identity
	AutoMutualTLS      bool
	TrustDomain        string   // trust domain of service accounts
	TrustDomainAliases []string // trust domains whose workloads are equivalent
	// additional trusted CA certificates (PEM), and the URLs of SPIFFE bundles with further ones;
	// sorted
	TrustedCAs, SPIFFEBundleURLs []string
	// additional trust domains (caCertificates) whose workloads servers accept; sorted
	OtherTrustDomains []string
	// external authorizers (extensionProviders) by name
	ExternalAuthorizers map[string]*meshapi.MeshConfig_ExtensionProvider
	// defaultConfig of proxies: worker threads of Envoy (nil: not set; 0: one for each core), and
	// variables of its environment
	Concurrency        *int32
	ProxyEnvironment   map[string]string
	TelemetryProviders // extensionProviders for logs, traces and metrics, and their defaults

	// The following are properties of the machine, which the MeshConfig file does not contain.
	SystemRoots       string // file with the system's CA certificates
	ReservedAddresses []ReservedAddress
	Credentials       CredentialLocation
}

// CredentialLocation is the location of certificates that Gateways and DestinationRules name as
// credentials.
type CredentialLocation struct {
	Folder  string // folder of the certificates; "" if they are on another host
	Cluster string // cluster of the SDS server that serves the certificates
	// Socket is the Unix socket of the host's SDS server, for names sds://NAME; "": there is none.
	Socket string
}

// Default returns the configuration without a mesh config file.
func Default() *Config {
	return &Config{RootNamespace: "istio-system", AllowAnyOutbound: true, OutboundPort: 15001,
		InboundPort: 15006, ConnectTimeout: 10 * time.Second, DNSRefreshRate: time.Minute,
		TrustDomain: "cluster.local", AutoMutualTLS: true,
		TelemetryProviders: NewTelemetryProviders(&meshapi.MeshConfig{})}
}

// Equal reports whether two configurations are equal.
func (m *Config) Equal(other *Config) bool {
	a, b := *m, *other
	for _, pair := range [][2]proto.Message{{a.Keepalive, b.Keepalive}, {a.Retry, b.Retry},
		{a.LocalityLB, b.LocalityLB}, {a.TLSDefaults, b.TLSDefaults},
		{a.MeshMTLS, b.MeshMTLS}} {
		if !proto.Equal(pair[0], pair[1]) {
			return false
		}
	}
	a.Keepalive, a.Retry, a.LocalityLB, a.TLSDefaults = b.Keepalive, b.Retry, b.LocalityLB, b.TLSDefaults
	a.MeshMTLS = b.MeshMTLS
	if !maps.EqualFunc(a.ExternalAuthorizers, b.ExternalAuthorizers,
		func(x, y *meshapi.MeshConfig_ExtensionProvider) bool { return proto.Equal(x, y) }) {
		return false
	}
	if !a.TelemetryProviders.equal(&b.TelemetryProviders) {
		return false
	}
	a.ExternalAuthorizers, a.TelemetryProviders = b.ExternalAuthorizers, b.TelemetryProviders
	return reflect.DeepEqual(a, b)
}

// EqualMutualTLS reports whether two configurations agree on mutual TLS in the mesh: which
// workloads use it, its parameters, and which authorities are trusted.
func (m *Config) EqualMutualTLS(other *Config) bool {
	return m.RootNamespace == other.RootNamespace && m.AutoMutualTLS == other.AutoMutualTLS &&
		proto.Equal(m.MeshMTLS, other.MeshMTLS) &&
		slices.Equal(m.AcceptedSPIFFEPrefixes(), other.AcceptedSPIFFEPrefixes()) &&
		slices.Equal(m.TrustedCAs, other.TrustedCAs) && slices.Equal(m.SPIFFEBundleURLs,
		other.SPIFFEBundleURLs)
}
