package config

import "time"

// Config is the configuration of one outriderd: one struct per table, one field per key. The
// definitions of the keys (tables_*.go) document them; etc/outrider.toml is generated from the
// definitions.
//
// After Load every path is absolute, every socket and directory with a default location is set, and
// "credential:NAME" is the path of that credential. A key is empty only if its empty value means
// "off", "none" or "detect" (see Node.WithHostDefaults for the last).
type Config struct {
	Paths     Paths
	Node      Node
	Envoy     Envoy
	Reload    Reload
	Discovery Discovery
	Identity  Identity
	SDS       SDS
	XDS       XDS
	Status    Status
	Health    Health
	DNS       DNS
	Capture   Capture
	STS       STS
	Telemetry Telemetry
	Tracing   Tracing
	Bus       Bus
	Log       Log
}

// Paths holds the keys of [paths].
type Paths struct {
	RuntimeDir string
	StateDir   string
}

// Node holds the keys of [node]. ID, IP and Domain may be empty; WithHostDefaults sets them.
type Node struct {
	Type            string // "sidecar" or "router"
	ID              string
	IP              string
	ExtraIPs        []string
	Namespace       string
	ServiceAccount  string
	ServiceCluster  string
	Domain          string
	ServiceRegistry string // "Kubernetes", "Consul" or "Mock"
	TrustDomain     string
	ClusterID       string
	MeshID          string
	Network         string
	Locality        string // region, region/zone or region/zone/subzone
	Cloud           string // aws, gcp or azure, whose metadata service is read; "": none
	WorkloadGroup   string
	Labels          map[string]string
	// Metadata holds values that fit into a protobuf Struct: string, bool, int64, float64, []any
	// and map[string]any of those. TOML's dates and times are converted to strings.
	Metadata map[string]any
}

// Envoy holds the keys of [envoy].
type Envoy struct {
	// Binary is a path, or a name that is looked up in $PATH; "" = search the standard paths.
	Binary                      string
	Enabled                     bool
	ConfigDir                   string
	CustomConfigFile            string
	TemplateFile                string
	ControlPlaneBootstrap       bool
	BootstrapOverride           string
	Concurrency                 int // 0 = one worker per core
	LogLevel                    string
	ComponentLogLevel           string // component:level,…
	AdminPort                   int    // 0 = no proxied admin interface
	AdminAccess                 string // "read" or "full"
	ConnectTimeout              time.Duration
	DNSRefreshRate              time.Duration
	StatNameLength              int
	MaxConnections              int           // 0 = no limit
	DrainDuration               time.Duration // whole seconds
	ParentShutdownDuration      time.Duration // whole seconds
	TerminationDrainDuration    time.Duration
	ExitOnZeroActiveConnections bool
	MinimumDrainDuration        time.Duration
	MaximumDrainDuration        time.Duration
	LiveTimeout                 time.Duration
	RestartBackoffMin           time.Duration
	RestartBackoffMax           time.Duration
	RestartLimit                int // 0 = unlimited
	RestartWindow               time.Duration
	User                        string
	OutlierLogPath              string
	BaseID                      int // 0 = choose a free one
	ExtraArgs                   []string
}

// Reload holds the keys of [reload].
type Reload struct {
	Watch             bool
	NewEpochOnRequest string // "always" or "if-changed"
	Files             []string
	Debounce          time.Duration
	MaxDelay          time.Duration
	Validate          bool
}

// Discovery holds the keys of [discovery].
type Discovery struct {
	Addresses        Addresses // of the upstream server; none: the embedded server
	Files            []string
	MeshConfigFile   string
	DebounceAfter    time.Duration
	DebounceMax      time.Duration
	Auth             string // "auto", "none", "tls" or "mtls"
	RootCAFile       string
	ServerName       string
	ConnectTimeout   time.Duration
	Cache            bool
	CacheMaxAge      time.Duration // 0: no limit
	Delta            bool
	DynamicBootstrap bool
	PilotIdentity    string
	MixerIdentity    string
	DebugAddress     string
	ProxyXDS         bool
}

// Identity holds the keys of [identity].
type Identity struct {
	Provider        string // "none", "files", "istiod" or "spire"
	CertFile        string
	KeyFile         string
	RootCAFile      string
	CredentialsDir  string
	CredentialsSDS  string
	RestartOnChange bool
	CertificateWait time.Duration
	CAAddress       string
	TokenFile       string
	ProvCertDir     string
	Persist         string // "auto" or "off"
	OutputDir       string
	KeyType         string
	PKCS8           bool
	TTL             time.Duration
	GraceRatio      float64
	GraceJitter     float64
	SpireSocket     string
}

// SDS holds the keys of [sds].
type SDS struct{ Socket string }

// XDS holds the keys of [xds].
type XDS struct {
	Socket            string
	GRPCBootstrapFile string
}

// Status holds the keys of [status].
type Status struct {
	Address            string // "" = off
	ReadyPort          int    // 0 = off
	ProxyControl       string // "off" or "loopback"
	ApplicationMetrics string // URL
	Probes             map[string]Probe
}

// Probe holds the keys of [status.probe.NAME]. Exactly one of HTTP, TCP and GRPC is set.
type Probe struct {
	HTTP    string // URL
	TCP     string // host:port
	GRPC    string // host:port or host:port/service
	Headers map[string]string
	Timeout time.Duration
}

// Health holds the keys of [health]. At most one of HTTP, TCP, GRPC, Exec and Unit is set.
type Health struct {
	HTTP             string // URL
	TCP              string // host:port
	GRPC             string // host:port or host:port/service
	Exec             []string
	Unit             string
	InitialDelay     time.Duration
	Period           time.Duration
	Timeout          time.Duration
	SuccessThreshold int
	FailureThreshold int
}

// ReportsHealth reports whether the agent sends the workload's health to the upstream server. A
// workload that registers itself always has a health: without a probe, that of the proxy.
func (c *Config) ReportsHealth() bool {
	d, h := c.Discovery, c.Health
	return len(d.Addresses) > 0 && d.ProxyXDS && (c.Node.WorkloadGroup != "" || h.HTTP != "" ||
		h.TCP != "" || h.GRPC != "" || len(h.Exec) > 0 || h.Unit != "")
}

// DNS holds the keys of [dns].
type DNS struct {
	Listen          string // "" = off
	Upstream        []string
	Parallel        bool
	SystemdResolved bool
}

// Capture holds the keys of [capture].
type Capture struct {
	Mode                 string // "none", "redirect" or "tproxy"
	InboundPorts         Ports
	ExcludeInboundPorts  []int
	OutboundCIDRs        []string
	ExcludeOutboundCIDRs []string
	ExcludeOutboundPorts []int
	DNS                  bool
	Units, ExcludeUnits  []string
	Fail                 string // "open" or "closed"; for outbound connections
	FailInbound          string // "auto", "open" or "closed"
	MaxConnections       int    // of each captured listener; 0: no limit
	TrialDuration        time.Duration
}

// Ports is a set of ports: all ("*"), those that Config.InboundPorts derives ("auto"), or the
// listed ones.
type Ports struct {
	All  bool
	Auto bool
	List []int
}

// InboundPorts returns the ports of [capture] inbound_ports. "auto" means all for a sidecar with an
// identity, else none.
func (c *Config) InboundPorts() Ports {
	if !c.Capture.InboundPorts.Auto {
		return c.Capture.InboundPorts
	}
	return Ports{All: c.Node.Type == "sidecar" && c.Identity.Provider != "none"}
}

// RejectsInboundOnFailure reports whether [capture] fail_inbound closes inbound connections. "auto"
// closes them if there is an identity.
func (c *Config) RejectsInboundOnFailure() bool {
	if c.Capture.FailInbound == "auto" {
		return c.Identity.Provider != "none"
	}
	return c.Capture.FailInbound == "closed"
}

// Addresses are the addresses of an upstream server; one of them is used at a time. The file has a
// string or a list of strings.
type Addresses []string

// UsesTLS reports whether the upstream server is reached with TLS.
func (d Discovery) UsesTLS() bool {
	return d.Auth != "none" && (d.Auth != "auto" || len(d.Addresses) == 0 ||
		!IsPlaintextCA(d.Addresses[0]))
}

// STS holds the keys of [sts].
type STS struct {
	Port         int // 0 = off
	TokenManager string
	Audience     string // "" = that of each request
	// e-mail address of a service account, "" = federated tokens are returned
	ServiceAccount string
}

// Telemetry holds the keys of [telemetry].
type Telemetry struct {
	StatsdUDPAddress         string
	MetricsService           string
	AccessLogService         string
	DisableInternalTelemetry bool
	PrometheusAddress        string // "" = off
	Stats                    string // "default" or "all"
	StatsPrefixes            []string
	StatsSuffixes            []string
	StatsRegexps             []string // RE2
	AccessLogFile            string
	AccessLogFormat          string
	MetricsServiceTLS        TLSSettings
	AccessLogServiceTLS      TLSSettings
}

// TLSSettings is [telemetry.metrics_service_tls] and [telemetry.access_log_service_tls]: Istio's
// tlsSettings.
type TLSSettings struct {
	Mode         string // "disable", "simple" or "mutual"
	CAFile       string
	CertFile     string
	KeyFile      string
	ServerName   string
	TCPKeepalive time.Duration // 0 = off
}

// Tracing holds the keys of [tracing].
type Tracing struct {
	Provider        string // "", "zipkin", "lightstep", "datadog" or "opentelemetry"
	Address         string
	AccessTokenFile string
	Secure          bool
	CAFile          string
	Sampling        float64 // percent
}

// Bus holds the keys of [bus].
type Bus struct{ Enabled bool }

// Log holds the keys of [log].
type Log struct {
	Level        string // "debug", "info", "warn" or "error"
	Format       string // "auto", "journal", "tint" or "json"
	IncludeEnvoy bool
}
