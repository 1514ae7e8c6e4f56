// Package mesh holds what Istio's MeshConfig says to the discovery server, and reads the file.
package mesh

import (
	"reflect"
	"time"

	"google.golang.org/protobuf/proto"
	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Config is what counts for everything that is translated. It is immutable and shared. Defaults are
// Istio's.
type Config struct {
	RootNamespace string // of objects that count in every namespace

	// What objects that do not say who sees them say; nil is everyone.
	ServiceExportTo, RoutingExportTo, RuleExportTo []string

	// requests to what nobody knows are passed on to where they were addressed
	AllowAny     bool
	OutboundPort uint32 // where captured connections to others arrive
	InboundPort  uint32 // where captured connections to this machine arrive
	// how long a connection may be silent before it is taken for TCP; 0 = for ever
	ProtocolDetection time.Duration
	ConnectTimeout    time.Duration
	DNSRefresh        time.Duration
	Keepalive         *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive // nil: none
	// of routes that say none; nil: Istio's own
	Retry *networking.HTTPRetry
	// nil: none is said
	Locality *networking.LocalityLoadBalancerSetting
	// requests to HTTP services are sent as HTTP/2
	UpgradeHTTP2      bool
	PathNormalization meshapi.MeshConfig_ProxyPathNormalization_NormalizationType
	TrustedProxies    uint32 // in front of gateways, whose x-forwarded-for is believed
	AccessLog         AccessLog

	// of servers and of services in files that say nothing else; nil: none is said
	TLS                *meshapi.MeshConfig_TLSConfig
	TrustDomain        string   // of service accounts
	TrustDomainAliases []string // whose workloads are the same
	// trusted beside those of the mesh: certificates, PEM, sorted
	Authorities []string

	// Of the machine, not of the file:
	Identity    bool   // proxies get a certificate of the mesh over SDS
	SystemRoots string // file of the authorities that the system trusts
	Taken       []Taken
}

// Default is a mesh without a file.
func Default() *Config {
	return &Config{RootNamespace: "istio-system", AllowAny: true, OutboundPort: 15001,
		InboundPort: 15006, ConnectTimeout: 10 * time.Second, DNSRefresh: time.Minute,
		TrustDomain: "cluster.local"}
}

// Equal tells whether two configurations say the same.
func (m *Config) Equal(other *Config) bool {
	a, b := *m, *other
	for _, pair := range [][2]proto.Message{{a.Keepalive, b.Keepalive}, {a.Retry, b.Retry},
		{a.Locality, b.Locality}, {a.TLS, b.TLS}} {
		if !proto.Equal(pair[0], pair[1]) {
			return false
		}
	}
	a.Keepalive, a.Retry, a.Locality, a.TLS = b.Keepalive, b.Retry, b.Locality, b.TLS
	return reflect.DeepEqual(a, b)
}
