package discovery

import (
	"log/slog"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/typedconfig"
)

// AccessLog configures the access log of generated listeners.
type AccessLog = mesh.AccessLog

// Reserved is an address of the host that is in use outside the mesh.
type Reserved = mesh.Reserved

// Credentials locates the certificates that Gateways and DestinationRules name.
type Credentials = mesh.Credentials

// Options of a Server.
type Options struct {
	// namespace of objects and proxies that name none, unless Settings has one; "": default
	Files     []string
	Namespace string   // suffix of short host names; "": cluster.local
	Domain    string   // initial settings; see Configure
	Settings  Settings // initial ones; see Configure

	// OwnAddresses gives proxies that differ only in their addresses separate resources. Without
	// interception, only inbound listeners of a Sidecar need them. If it is false, these proxies
	// share all resources, and such listeners must name their bind address.
	OwnAddresses bool

	// Await serves nothing while one of Files has not existed, or could not be listed, since the
	// start, until Proceed is called: it may have access policies.
	Await bool

	// LastGood is the file (0600) that stores versions in force whose files are invalid now. If it is
	// "", a server that starts with an invalid file does not serve its objects.
	LastGood string

	// Refusals is the file (0600) that stores the resources that proxies refused, with those that they
	// accepted last. "": refusals are forgotten when the server ends.
	Refusals string

	// KeySets is the file (0600) that stores the fetched key sets of RequestAuthentications. "": after
	// a start, none is known until it has been fetched.
	KeySets       string
	KeySetRefresh time.Duration // 0: 20 minutes

	// TypedConfigs checks typed_configs in EnvoyFilters whose types this program does not link. nil:
	// Envoy alone checks them.
	TypedConfigs *typedconfig.Checker

	// Served means that an earlier server may have served Files. If it left no mark in LastGood that
	// it refused EnvoyFilters with something unknown, these stay in force.
	Served bool

	// file with the CA certificates that are trusted by default; "": the system's
	MaxViews    int
	SystemRoots string // file of the authorities trusted by default; "" is the system's

	// Namespaces returns the namespaces of the agent's proxies, including those that are starting:
	// for such a proxy, objects that name no namespace are in its namespace. nil: they are in that
	// of the settings. It must not block.
	Namespaces func() []string

	// TrustBundle receives the CA certificates (PEM) and the URLs of SPIFFE bundles that the mesh
	// configuration in force adds, as it is read and applied. nil: nobody needs them. It must not
	// block.
	TrustBundle func(authorities, bundles []string)

	// Changes delivers changed paths: files, or directories to scan. nil: nothing changes.
	Changes <-chan []string

	// Sources are the names of the sources of Accept, and store.FilesSource, in order of precedence:
	// of two objects with the same key, that of the earlier source is in force. nil: files only
	Sources []string
	// Required are those of Sources that may have access policies: until each has delivered its
	// complete state once, nothing is served.
	Required []string

	// Pushed is called after each change that may be one of Names. It must not block. nil: nobody
	// needs it.
	Pushed func()

	// EncodeObject encodes an object for clients that want the configuration itself, see
	// WantsObjects: all of them get all objects. nil: they are refused.
	EncodeObject func(*object.Object) (*resource.Resource, error)

	Local  bool   // proxies are on this host: the server watches their certificate files
	Denied Denied // reports certificate files that proxies cannot read; nil: unknown
	// AgentDenied reports files of credentials that the agent cannot read; nil: unknown.
	AgentDenied Denied

	Program store.Program // nil: logs are discarded

	Board  *condition.Board // nil: problems are only returned
	Logger *slog.Logger     // Settings are options that can change while the server runs.
}

// file with Istio's MeshConfig; "": its defaults
type Settings struct {
	Namespace      string      // location of the certificates of Gateways and DestinationRules
	MeshConfigFile string      // access log of listeners; empty: that of MeshConfig
	Reserved       []Reserved  // time without changes before a push; 0: push at once
	Credentials    Credentials // longest delay of a push by further changes
	// version of the proxies' Envoy, such as "1.40.0"; "": not newer than the linked API
	AccessLog AccessLog
	// no Envoy uses the server, so problems are listed but not reported
	DebounceAfter time.Duration
	DebounceMax   time.Duration // longest delay of a push
	EnvoyVersion  string        // of the proxies: "1.40.0"; "" = not newer than the linked API
	Unused        bool          // no Envoy uses the server: problems are listed, but not reported
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
