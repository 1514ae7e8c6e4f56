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

// ReservedAddress is an address of the host that a listener outside the mesh uses.
type ReservedAddress = mesh.ReservedAddress

// CredentialLocation is the location of certificates that Gateways and DestinationRules name as
// credentials.
type CredentialLocation = mesh.CredentialLocation

// Options configures a discovery server.
type Options struct {
	Files []string // files, and directories with all *.yaml, *.yml and *.json files below them
	// namespace of objects and proxies that name none, unless Settings has one; "": default
	Namespace string
	Domain    string   // suffix of short host names; "": cluster.local
	Settings  Settings // initial settings; see Configure

	// SeparateViewsByAddress makes proxies with different addresses use separate views. If it is
	// false, proxies without interception that differ only in addresses share a view, so inbound
	// listeners of a Sidecar must name their bind address. For proxies with interception see
	// NewFleetServer.
	SeparateViewsByAddress bool

	// AwaitFileListing makes the server withhold all resources until each of Files, and each
	// directory that had policies in an earlier run, was listed once since the start. A path that
	// is missing may contain policies.
	AwaitFileListing bool

	// LastGoodFile is the file (mode 0600) with the last good versions of objects whose newest
	// versions are invalid. "": they are not stored, so that a restarted server does not serve
	// objects of invalid files.
	LastGoodFile string

	// RefusalFile is the file (mode 0600) with the resources that proxies refused, and their last
	// accepted versions. "": refusals are not stored.
	RefusalFile string

	// KeySetCacheFile is the file (mode 0600) with the fetched key sets of RequestAuthentications.
	// "": after a start, no key set is known until it was fetched.
	KeySetCacheFile string
	KeySetRefresh   time.Duration // interval at which key sets are fetched again; 0: 20 minutes

	// FetchWasmModules makes the server fetch the Wasm modules of extensions and put them into the
	// resources. If it is false, the clients are agents that fetch modules themselves, as istiod's
	// clients do.
	FetchWasmModules bool
	// WasmModuleCacheFile is the file (mode 0600) with the fetched modules. "": after a start, no
	// module is known until it was fetched.
	WasmModuleCacheFile string

	// TypedConfigs checks typed_configs of EnvoyFilters whose types are not linked into this
	// program. nil: Envoy alone checks them.
	TypedConfigs *typedconfig.Checker

	// EarlierRunMayHaveServedFiles reports whether an earlier server may have served Files. If that
	// server did not check EnvoyFilters for unknown fields
	// (lastgood.State.WriterRefusedUnknownFilterFields), EnvoyFilters with unknown fields remain in
	// force.
	EarlierRunMayHaveServedFiles bool

	MaxViews int // number of kinds of proxies that are served at the same time; 0: 4,096
	// MaxViewsPerIdentity bounds the number of kinds of proxies that have the same identity.
	// Proxies without an identity count as having the same one. 0: MaxViews.
	MaxViewsPerIdentity int

	// file with the CA certificates that are trusted by default; "": the system's
	SystemRoots string

	// ProxyNamespaces returns the namespaces of the agent's proxies, including starting ones.
	// Objects without a namespace are in the namespace of the proxy that gets them. nil: they are
	// in Settings.Namespace. It must not block.
	ProxyNamespaces func() []string

	// OnTrustChange is called with the CA certificates (PEM) and the URLs of SPIFFE bundles in
	// MeshConfig whenever a MeshConfig comes into force. nil: no call. It must not block.
	OnTrustChange func(authorities, bundles []string)

	// ChangedPaths delivers changed paths: files, or directories to be scanned. nil: nothing
	// changes.
	ChangedPaths <-chan []string

	// Sources has the names of the sources of objects, including store.FilesSource, in order of
	// precedence: of objects with equal keys, the one of the earlier source is in force. Updates of
	// other sources are ignored. nil: only files.
	Sources []string
	// RequiredSources are the members of Sources that may contain policies. No resources are served
	// until each has delivered its complete state once.
	RequiredSources []string

	// OnPush is called after each push that may have changed DNSNames. It must not block. nil: no
	// call.
	OnPush func()

	// ServeNameTables serves tables of names (NDS) for the agents whose nodes have DNS_CAPTURE.
	ServeNameTables bool

	// RegisterWorkloads reports whether this program registers workloads. Otherwise WorkloadGroups
	// have no effect, and a warning says so.
	RegisterWorkloads bool

	// EncodeObject encodes an object for clients that request objects (see RequestsIstioObjects).
	// Each client gets all objects. nil: such clients are refused.
	EncodeObject func(*object.Object) (*resource.Resource, error)

	FilesAreLocal  bool      // certificate files are on this host, so the server watches them
	ProxyReadCheck ReadCheck // reports certificate files that proxies cannot read; nil: not checked
	// AgentReadCheck reports credential files that the agent cannot read; nil: not checked.
	AgentReadCheck ReadCheck

	// receives problems as a condition and events; nil: problems are only returned
	Conditions *condition.Registry
	Logger     *slog.Logger // receives the server's log; nil: it is discarded
}

// Settings are options that can change while the server runs.
type Settings struct {
	// namespace of objects and proxies that name none; "": Options.Namespace
	Namespace         string
	MeshConfigFile    string            // file with Istio's MeshConfig; "": its defaults
	ReservedAddresses []ReservedAddress // addresses that listeners of the mesh cannot use
	// location of the certificates of Gateways and DestinationRules
	Credentials   CredentialLocation
	AccessLog     AccessLog     // access log of listeners; empty: that of MeshConfig
	DebounceAfter time.Duration // time without changes before a push; 0: push at once
	DebounceMax   time.Duration // longest delay of a push by further changes
	// version of the proxies' Envoy, such as "1.40.0"; "": not newer than the linked API
	EnvoyVersion string
	// Workload is this host's workload. It is compared with its WorkloadGroup.
	Workload Workload
	// no Envoy uses the server: Problems lists problems, but they raise no condition
	ServesNoEnvoy bool
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
	if o.OnTrustChange == nil {
		o.OnTrustChange = func(_, _ []string) {}
	}
	if o.SystemRoots == "" {
		o.SystemRoots = systemRoots()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}
