package discovery

import (
	"log/slog"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/typedconfig"
)

// AccessLog configures the access log of the listeners.
type AccessLog = mesh.AccessLog

// Reserved is an address of the host that a listener outside the mesh uses.
type Reserved = mesh.Reserved

// Credentials says where the certificates are that Gateways and DestinationRules name.
type Credentials = mesh.Credentials

// Options configures a discovery server.
type Options struct {
	Files []string // files, and directories with all *.yaml, *.yml and *.json files below them
	// namespace of objects and proxies that name none, unless Settings has one; "": default
	Namespace string
	Domain    string   // suffix of short host names; "": cluster.local
	Settings  Settings // initial settings; see Configure

	// OwnAddresses gives proxies that differ only in their addresses separate views. If it is false,
	// those without interception share a view: inbound listeners of a Sidecar must name their bind
	// address. For those with interception see Share.
	OwnAddresses bool

	// Await makes the server wait while one of Files, or a directory that had policies in an earlier
	// run, has not existed, or could not be listed, since the start: it may contain policies. Until
	// it was listed, nothing is served.
	Await bool

	// LastGood is the file (mode 0600) that stores versions in force whose files are invalid now.
	// If it is "", a server that starts with an invalid file does not serve that file's objects.
	LastGood string

	// Refusals is the file (mode 0600) that stores which resources proxies refused, and the last
	// accepted versions of these. "": refusals are not stored.
	Refusals string

	// KeySets is the file (mode 0600) that stores the fetched key sets of RequestAuthentications.
	// "": after a start, every key set is unknown until it was fetched.
	KeySets       string
	KeySetRefresh time.Duration // interval at which key sets are fetched again; 0: 20 minutes

	// FetchModules makes the server fetch the Wasm modules of extensions, and pass them to proxies.
	// If it is false, the clients are agents that fetch modules by themselves, as istiod's are.
	FetchModules bool
	// Modules is the file (mode 0600) that stores the fetched modules. "": after a start, every
	// module is absent until it was fetched.
	Modules string

	// TypedConfigs checks typed_configs in EnvoyFilters whose types are not linked into this
	// program. nil: only Envoy checks them.
	TypedConfigs *typedconfig.Checker

	// Served reports whether an earlier server may have served Files. If LastGood has no mark that
	// the earlier server refused EnvoyFilters with unknown fields, EnvoyFilters with unknown fields
	// remain in force.
	Served bool

	MaxViews int // number of kinds of proxies that are served at the same time; 0: 4,096
	// MaxViewsPerIdentity is the number of kinds that clients of one identity brought, and all
	// clients without an identity together; 0: MaxViews.
	MaxViewsPerIdentity int

	// file with the CA certificates that are trusted by default; "": the system's
	SystemRoots string

	// Namespaces returns the namespaces of the agent's proxies, including those that are starting.
	// For a proxy in one of them, objects that name no namespace are in the proxy's namespace. nil:
	// they are in that of the settings. It must not block.
	Namespaces func() []string

	// TrustBundle is called with the CA certificates (PEM) and the URLs of SPIFFE bundles that
	// MeshConfig adds, whenever a MeshConfig is put in force. nil: no call. It must not block.
	TrustBundle func(authorities, bundles []string)

	// Changes delivers changed paths: files, or directories to be scanned. nil: nothing changes.
	Changes <-chan []string

	// Sources are the names of sources whose batches are accepted, and store.FilesSource, in order
	// of precedence: of two objects with the same key, that of the earlier source is in force. nil:
	// only files.
	Sources []string
	// Required are those of Sources that may contain policies: until each of them has delivered its
	// complete state once, nothing is served.
	Required []string

	// Pushed is called after each push that may have changed Names. It must not block. nil: no
	// call.
	Pushed func()

	// NameTables serves tables of names (NDS) for the agents whose nodes have DNS_CAPTURE.
	NameTables bool

	// RegisterWorkloads says that workloads register themselves, so that WorkloadGroups have an
	// effect.
	RegisterWorkloads bool

	// EncodeObject encodes an object for clients that request the objects themselves, see
	// WantsObjects. Each of them gets all objects. nil: such clients are refused.
	EncodeObject func(*object.Object) (*resource.Resource, error)

	Local  bool   // proxies are on this host, so the server watches their certificate files
	Denied Denied // reports certificate files that proxies cannot read; nil: unknown
	// AgentDenied reports files of credentials that the agent cannot read; nil: unknown.
	AgentDenied Denied

	// shows problems as a condition and events; nil: problems are only returned
	Board  *condition.Board
	Logger *slog.Logger // receives the server's log; nil: it is discarded
}

// Settings are options that can change while the server runs.
type Settings struct {
	// namespace of objects and proxies that name none; "": Options.Namespace
	Namespace      string
	MeshConfigFile string        // file with Istio's MeshConfig; "": its defaults
	Reserved       []Reserved    // addresses that listeners of the mesh cannot use
	Credentials    Credentials   // location of the certificates of Gateways and DestinationRules
	AccessLog      AccessLog     // access log of listeners; empty: that of MeshConfig
	DebounceAfter  time.Duration // time without changes before a push; 0: push at once
	DebounceMax    time.Duration // longest delay of a push by further changes
	// version of the proxies' Envoy, such as "1.40.0"; "": not newer than the linked API
	EnvoyVersion string
	// Workload is that of the host, which is compared with its WorkloadGroup.
	Workload Workload
	// no Envoy uses the server, so problems are listed but not reported
	Unused bool
}

func fill(o *Options) {
	if o.Namespace == "" {
		o.Namespace = "default"
	}
	if o.Settings.Namespace == "" {
		o.Settings.Namespace = o.Namespace
	}
	if o.Domain == "" {
		o.Domain = "cluster.local"
	}
	if o.MaxViews == 0 {
		o.MaxViews = defaultMaxViews
	}
	if o.MaxViewsPerIdentity == 0 {
		o.MaxViewsPerIdentity = o.MaxViews
	}
	if o.TrustBundle == nil {
		o.TrustBundle = func(_, _ []string) {}
	}
	if o.SystemRoots == "" {
		o.SystemRoots = systemRoots()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}
