// Package bootstrap describes Envoy's bootstrap and has it rendered by outrider-bootstrap (package
// bootstrap/render), a separate short-lived program:
//
//   - Templates call methods by names known only at run time, for which the linker would keep every
//     method of every type in outriderd.
//   - The descriptors of the bootstrap's messages would stay in outriderd's memory.
//   - The time and memory of a template can be bounded.
//
// The program also checks typed_configs, because it links every type of Envoy's API and the agent
// does not.
package bootstrap

import (
	"net/netip"
	"time"
)

// Input determines a bootstrap.
type Input struct {
	Node Node

	// AdminSocket is the path of the epoch's admin socket, or AdminSocketPlaceholder.
	AdminSocket string
	Discovery   Discovery
	SDSSocket   string // path of the SDS socket; "" = none
	// CredentialSocket is the path of the SDS socket for credentials other than the workload's
	// certificate; "" = SDSSocket serves them, too.
	CredentialSocket string
	// ExternalSDSSocket is the socket of an SDS server of the host for credentials sds://NAME; "" =
	// none.
	ExternalSDSSocket string `json:"HostSecrets"`
	// SystemRoots is the path of the system's root certificates (see SystemRootCandidates); "" =
	// none.
	SystemRoots string

	ConnectTimeout time.Duration // for the clusters in the bootstrap; 0 = 1 s
	// DNSRefreshRate applies to answers without a TTL; 0 = 300 s.
	DNSRefreshRate time.Duration
	MaxConnections uint64 // from clients, at the same time; 0 = no limit
	// MaxCapturedConnections is the limit for each listener of captured connections. It does not
	// count connections that the listener passes to another one, such as that of an outbound
	// service.
	MaxCapturedConnections uint64 `json:"MaxCaptured"`

	Prometheus string // host:port of the metrics listener; "" = none
	Ready      ReadyListener

	Stats            StatsSelection
	StatsdAddress    string   // IP:port, UDP; "" = none
	MetricsService   *Server  // nil = none
	AccessLogService *Server  // nil = none
	Tracing          *Tracing // nil = none
	OutlierLogPath   string   // "" = none

	Template TemplateInput
}

// Node identifies this proxy.
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
	WorkloadGroup  string // "" = no registration
	Labels         map[string]string

	Identity         bool   // SDSSocket serves a certificate of the mesh
	IPv6             bool   // captured connections may be IPv6
	InterceptionMode string // REDIRECT, TPROXY, NONE or "" (unspecified)
	DNSCapture       bool   // a DNS proxy answers for mesh hosts
	// ProxyConfig is Istio's ProxyConfig as JSON, for an istiod; nil = none.
	ProxyConfig map[string]any
	// DisableInternalTelemetry is the node metadata DISABLE_INTERNAL_TELEMETRY, which discovery
	// servers and templates read.
	DisableInternalTelemetry bool `json:"DisableInternal"`
	// Metadata overrides the metadata made from the other fields.
	Metadata map[string]any
}

// Discovery is the source of Envoy's dynamic configuration: the agent's Socket, or else Upstream
// directly. Without either, Envoy has only its bootstrap.
type Discovery struct {
	Socket   string
	Upstream *Server
	Delta    bool // incremental xDS
}

// ReadyListener is the listener for readiness probes through Envoy.
type ReadyListener struct {
	Address string // host:port, without host all addresses; "" = no listener
	Backend string // host:port of the agent's status server; "" = Envoy's admin interface answers
}

// StatsSelection selects the statistics that Envoy creates: the default ones and those that start
// or end with one of the strings or match an expression (RE2, the whole name); or all.
type StatsSelection struct {
	All                         bool
	Prefixes, Suffixes, Regexps []string
}

// Server is a server that Envoy connects to.
type Server struct {
	Address   string // host:port
	TLS       TLS
	Keepalive time.Duration // TCP keep-alive: idle time before the first probe; 0 = none
}

// TLSMode is the TLS mode of a Server.
type TLSMode string

// The modes. "" is TLSDisable.
const (
	TLSDisable TLSMode = "disable" // no TLS
	TLSSimple  TLSMode = "simple"  // the server has a certificate
	TLSMutual  TLSMode = "mutual"  // both sides have a certificate
)

// TLS has the TLS settings of a Server.
type TLS struct {
	Mode              TLSMode
	CAFile            string // "" = Input.SystemRoots
	CertFile, KeyFile string // client certificate, for TLSMutual
	// CertificateFromSDS makes Envoy, with TLSMutual, request its certificate and the roots from
	// SDSSocket instead of reading the files.
	CertificateFromSDS bool `json:"SDS"`
	// ServerName is the SNI and must be a name in the server's certificate; "" = the host of the
	// address.
	ServerName string
}

// The tracing providers.
const (
	TracerZipkin        = "zipkin"
	TracerDatadog       = "datadog"
	TracerOpenTelemetry = "opentelemetry"
	// spans go over OpenTelemetry, as current Envoys have no Lightstep client
	TracerLightstep = "lightstep"
)

// Tracing configures where spans are sent.
type Tracing struct {
	Provider    string // one of the tracing providers
	Service     Server
	AccessToken string  // TracerLightstep; becomes part of the bootstrap
	Sampling    float64 // percent of requests, 0 to 100
}

// TemplateInput has data that only templates use.
type TemplateInput struct {
	ControlPlane     bool   // the template renders a control plane's own bootstrap
	DiscoveryAddress string // host:port of the upstream server
	DiscoveryRootCA  string // path
	PilotIdentity    string
	MixerIdentity    string
	ControlPlaneAuth bool // mutual TLS to the control plane
	AdminPort        int  // port of the agent's own, filtered admin interface
	StatusPort       int
	STSPort          int // 0 = off
	Concurrency      int
	StatNameLength   int
	ConfigDir        string
	BinaryPath       string
	DrainDuration    time.Duration
	ParentShutdown   time.Duration
}
