// Package bootstrap says what Envoy's bootstrap is made of, and has it rendered by outrider-bootstrap: a program of its own
// (package bootstrap/render) that lives for some hundredths of a second, because
//
//   - templates call methods by names that only exist at run time, for which the linker would keep every method of every type in outriderd,
//   - what protobuf remembers of the bootstrap's messages, of which outriderd needs no other, would stay in memory for ever,
//   - what a template takes, time and memory, can be bounded.
package bootstrap

import (
	"net/netip"
	"time"
)

// Input is everything a bootstrap depends on.
type Input struct {
	Node Node

	AdminSocket string // path of the epoch's own admin socket; AnySocket where it is rendered for all of them
	Discovery   Discovery
	SDSSocket   string // path of the socket secrets come from; "" = none
	SystemRoots string // path of the system's root certificates (see SystemRootCandidates); "" = not found

	ConnectTimeout time.Duration // of the clusters made here; 0 = 1 s
	DNSRefreshRate time.Duration // of the names among them, where a DNS answer has no TTL; 0 = 300 s
	MaxConnections uint64        // from clients, at the same time; 0 = no limit

	Prometheus string // host:port of the listener of Envoy's metrics; "" = none
	Ready      Ready

	StatsdAddress    string   // IP:port, UDP; "" = none
	MetricsService   *Service // nil = none
	AccessLogService *Service // nil = none
	Tracing          *Tracing // nil = none
	OutlierLogPath   string   // "" = none
	Stats            Stats

	Template TemplateInput
}

// Node says who this proxy is.
type Node struct {
	Type           string       // "sidecar" or "router"
	ID             string       // "<name>.<namespace>"
	IPs            []netip.Addr // the first is the node's own
	Namespace      string
	ServiceAccount string
	ServiceCluster string
	Domain         string
	TrustDomain    string
	ClusterID      string
	MeshID         string
	Network        string
	Locality       string // region/zone/subzone
	WorkloadGroup  string // "" = does not register itself
	Labels         map[string]string

	InterceptionMode string         // REDIRECT, TPROXY or NONE; "" leaves it open
	DNSCapture       bool           // a DNS proxy answers for the mesh
	ProxyConfig      map[string]any // Istio's ProxyConfig, in its JSON form, for an istiod; nil = none
	DisableInternal  bool           // metadata DISABLE_INTERNAL_TELEMETRY, for templates and servers that read it
	Metadata         map[string]any // further metadata; a key given here counts instead of one made here
}

// Discovery says where Envoy's configuration comes from: from the agent's Socket, or else from Upstream itself; from
// neither, and Envoy has only what the bootstrap holds.
type Discovery struct {
	Socket   string
	Upstream *Service
	Delta    bool // incremental xDS
}

// Ready is the listener for readiness probes through Envoy.
type Ready struct {
	Address string // host:port of the listener, no host means all addresses; "" = no listener
	Backend string // host:port of the agent's status server; "" = Envoy's admin interface answers
}

// Service is a server that Envoy itself talks to.
type Service struct {
	Address   string // host:port
	TLS       TLS
	Keepalive time.Duration // TCP keep-alive: idle time before the first probe; 0 = none
}

// TLSMode says how a Service is talked to.
type TLSMode string

// The modes. "" is Disable.
const (
	Disable TLSMode = "disable" // no TLS
	Simple  TLSMode = "simple"  // the server shows a certificate
	Mutual  TLSMode = "mutual"  // both do
)

// TLS are the settings of a Service.
type TLS struct {
	Mode              TLSMode
	CAFile            string   // "" = Input.SystemRoots
	CertFile, KeyFile string   // Mutual
	SDS               bool     // Mutual: certificate and roots are the workload's, from SDSSocket, and the files do not count
	ServerName        string   // SNI; "" = the host of the address
	SubjectAltNames   []string // of which the server's certificate must have one; none = ServerName
}

// The tracing providers.
const (
	Zipkin        = "zipkin"
	Datadog       = "datadog"
	OpenTelemetry = "opentelemetry"
	Lightstep     = "lightstep" // spoken to by OpenTelemetry: Envoy's own client for it is gone
)

// Tracing says where spans go.
type Tracing struct {
	Provider    string // one of the tracing providers
	Service     Service
	AccessToken string  // Lightstep; a secret that ends up in the bootstrap
	Sampling    float64 // percent of requests, 0 to 100
}

// Stats says which statistics Envoy makes. With no inclusion at all it makes all of them; with any, those and the ones
// that Outrider and Istio's tools need. Istio's annotations (sidecar.istio.io/statsInclusionPrefixes, …Suffixes and
// …Regexps under ANNOTATIONS of the node's metadata) add to them.
type Stats struct {
	InclusionPrefixes, InclusionSuffixes, InclusionRegexps []string
}

// TemplateInput is what only a template can use.
type TemplateInput struct {
	ControlPlane     bool   // the template renders a control plane's own bootstrap
	DiscoveryAddress string // host:port of the upstream server
	DiscoveryRootCA  string // path
	PilotIdentity    string
	MixerIdentity    string
	ControlPlaneAuth bool // talks to the control plane by mutual TLS
	AdminPort        int  // of the agent's view of the admin interface
	StatusPort       int
	STSPort          int // 0 = off
	Concurrency      int
	StatNameLength   int
	ConfigDir        string
	BinaryPath       string
	DrainDuration    time.Duration
	ParentShutdown   time.Duration
}
