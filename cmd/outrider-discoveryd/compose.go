package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/journal"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/systemd"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/ca"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/clones"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/debug"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/kubernetes"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/mcp"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/monitoring"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/record"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/sources"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/web"
)

// base holds what the constructors of all components share.
type base struct {
	options config.Options
	log     *slog.Logger
	level   *slog.LevelVar
	logs    journal.Logs
	board   *condition.Registry
}

func (b *base) logOf(part string) *slog.Logger { return b.log.With("component", part) }

// program holds all components, in the order in which they start.
type program struct {
	notifier     *systemd.Notifier
	reloader     *reloader
	control      *control
	events       *journal.EventLog
	certificates lifecycle.Component
	registration *registration.Server // nil: [registration] is off
	files        lifecycle.Component
	monitoring   lifecycle.Component
	sources      []lifecycle.Component
	recorder     *record.Recorder
	reports      lifecycle.Component
	discovery    *discovery.Server
	streams      *xds.Server
	listeners    []lifecycle.Component
}

// maxViewsPerIdentity bounds the views, the translations for one kind of proxy, that clients with
// one identity can cause. It is a quarter of the bound for all clients. With 1,000 services a view
// needs 2 MB.
const maxViewsPerIdentity = 1024

// fileDelay merges the events of one written file; the discovery server debounces changes further.
const fileDelay = time.Millisecond

// compose creates all components, each from the earlier ones, but starts none:
//
//	sources → recorder → discovery.Server → xds.Server → listeners
func compose(b *base, loaded *config.DiscoverydLoaded) (*program, error) {
	c := loaded.Config
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, err
	}
	files := watch.New(watch.Options{Delays: watch.Delays{Debounce: fileDelay, MaxDelay: fileDelay},
		Suffixes: []string{".yaml", ".yml", ".json"}, Logger: b.logOf("watch")})
	paths := filesOf(c)
	if err := files.SetPaths(watched(c, paths)); err != nil {
		return nil, err
	}
	_, explicit := loaded.Positions["source"]
	pushed := make(chan struct{}, 1)
	server, err := discovery.New(discovery.Options{Files: paths, Domain: c.Domain,
		OnPush: func() {
			select {
			case pushed <- struct{}{}:
			default: // the channel has a signal already
			}
		},
		Settings: settingsOf(c), Sources: names(c), RequiredSources: required(c),
		AwaitFileListing:    explicit && len(paths) > 0,
		MaxViewsPerIdentity: maxViewsPerIdentity,
		LastGoodFile:        filepath.Join(c.StateDir, "last-good"),
		RefusalFile:         filepath.Join(c.StateDir, "refusals"),
		KeySetCacheFile:     filepath.Join(c.StateDir, "key-sets"),
		EncodeObject:        mcp.Encode, ServeNameTables: true,
		RegisterWorkloads: c.Registration.Enabled,
		ChangedPaths:      files.Changes(), Conditions: b.board, Logger: b.logOf("discovery")})
	if err != nil {
		return nil, err
	}
	recorder := record.New(c.StateDir, server.AcceptUpdate, b.board, b.logOf("sources"))
	all, err := sources.New(c, recorder.AcceptUpdate, b.logOf)
	if err != nil {
		return nil, err
	}
	recorder.SetSources(all)
	clients := auth.New(authOf(c), func() []string {
		return append(server.TrustDomains(), c.Domain)
	}, b.logOf("auth"))
	registrar, err := newRegistration(b, c, server, all)
	if err != nil {
		return nil, err
	}
	var debugger *debug.Debugger
	var authority *ca.Server
	options := xds.WithFleetLimits(xds.Options{
		Source: discovery.NewFleetServer(server), Logger: b.logOf("xds"),
		Admit: mcp.RequireIdentity(clients.Admit), MayReceiveSecrets: clients.MayReceiveSecrets,
		Observer: clones.New(b.board),
		AnswerDebugRequest: func(ctx context.Context, client xds.Peer, typeURL string,
			names []string) (
			[]*resource.Resource, error) {
			return debugger.AnswerRequest(ctx, client, typeURL, names)
		},
		MaxUnansweredBytes: c.Listen.MaxBufferedBytes,
		ControlPlane:       "outrider-discoveryd " + version,
		ConnectsPerSecond:  c.Listen.MaxConnectsPerSecond, MaxConcurrentResponseBuilds: c.Push.Concurrency,
		MaxConnectionAge: c.Listen.MaxConnectionAge,
		RegisterServices: func(registrar grpc.ServiceRegistrar) {
			if authority != nil {
				authority.Register(registrar)
			}
		}})
	if registrar != nil {
		options.RegisterWorkload = registrar.Register
	}
	streams, err := xds.NewServer(options)
	if err != nil {
		return nil, err
	}
	debugger = debug.New(debug.Options{XDS: streams, Discovery: server,
		Authorize: clients.AuthorizeDebug,
		Sources:   func() any { return statuses(all) }})
	certificates := watch.NewNotifier(watch.Delays{Debounce: 100 * time.Millisecond,
		MaxDelay: time.Second}, b.logOf("watch"))
	identity := newServerIdentity(c.TLS, certificates, b.board, b.logOf("tls"))
	if c.CA.Enabled {
		if authority, err = ca.New(caOf(c), ca.Options{Authenticate: clients.Authenticate,
			WaitForRateLimit: streams.WaitForRateLimit, TrustClientRoots: identity.trust, Watcher: certificates, Conditions: b.board,
			Logger: b.logOf("ca")}); err != nil {
			return nil, err
		}
	}
	p := &program{certificates: &certificateWatch{Notifier: certificates}, files: files,
		recorder: recorder, discovery: server, streams: streams,
		events: &journal.EventLog{Conditions: b.board, Log: b.log, Logs: b.logs}}
	for _, s := range all {
		p.sources = append(p.sources, &runningSource{Source: s})
	}
	p.registration = registrar
	p.reports = newReporter(server, pushed, all)
	p.reloader = newReloader(b, loaded, server, identity)
	p.reloader.clients, p.reloader.streams, p.reloader.authority = clients, streams, authority
	p.reloader.states = newSourceStates(all, b.board)
	p.control = newControl(controlSocket(os.Getenv, ""), p.reloader.Reload, b.logOf("control"))
	p.notifier = systemd.NewNotifier(systemd.Options{Environment: os.Getenv, Ping: p.reloader.ping,
		Logger: b.logOf("systemd")})
	p.reloader.notifier, p.reloader.sources = p.notifier, all
	p.reloader.recorder = recorder
	if c.Listen.Plaintext != "" {
		p.listeners = append(p.listeners, newListener(c.Listen.Plaintext, streams, nil))
	}
	if c.Listen.TLS != "" {
		if err := identity.load(); err != nil {
			return nil, err
		}
		p.listeners = append(p.listeners, newListener(c.Listen.TLS, streams, identity))
	} else if hasCertificate(c.TLS) {
		// without a TLS listener for xDS, the monitoring listener uses the certificate
		identity.use(c.TLS)
	}
	pages := web.New(web.Options{Version: version, Ready: p.reloader.readiness,
		Streams: streams.Status, Inventory: server.MeshInventory, Problems: server.Problems,
		Conditions: b.board.Conditions, Sources: func() []web.Source {
			return append(filesStatus(c, p.reloader), statuses(all)...)
		}})
	p.monitoring = newMonitor(c.Listen.Monitoring, monitoring.Options{Ready: p.reloader.readiness,
		Metrics:       newMetrics(server, streams, authority, registrar, p.reloader.states, pages),
		RegisterPages: pages.Register, Debug: debugger.ServePage, TLS: identity.current.Load,
		Authorize: clients.AuthorizeDebugPage, Logger: b.logOf("monitoring")})
	return p, nil
}

// filesOf returns the paths of the source of type files; none without such a source.
func filesOf(c *config.Discoveryd) []string {
	for _, s := range c.Sources {
		if s.Type == store.FilesSource {
			return s.Paths
		}
	}
	return nil
}

// watched returns the patterns of the paths to watch for changes: paths with all files below them,
// and the mesh configuration file.
func watched(c *config.Discoveryd, paths []string) []string {
	all := make([]string, 0, len(paths)+1)
	for _, path := range paths {
		all = append(all, path+"/...")
	}
	if c.MeshConfigFile != "" {
		all = append(all, c.MeshConfigFile)
	}
	return all
}

// names returns the names of all sources, followed by those of all registries.
func names(c *config.Discoveryd) (all []string) {
	for _, s := range slices.Concat(c.Sources, c.Registries) {
		all = append(all, s.Name)
	}
	return all
}

// authOf returns the settings for the authentication of clients.
func authOf(c *config.Discoveryd) auth.Settings {
	s := auth.Settings{Require: c.Auth.Require, DebugIdentities: c.Auth.DebugIdentities,
		JoinKeyFile: c.Auth.JoinKeyFile}
	if c.Auth.JoinNotBefore != "" {
		// loading the configuration has checked it
		s.JoinNotBefore, _ = time.Parse(time.RFC3339, c.Auth.JoinNotBefore)
	}
	for _, i := range c.Auth.JWTIssuers {
		s.Issuers = append(s.Issuers, auth.Issuer{Name: i.Issuer, Audience: i.Audience,
			KeyFile: i.JWKSFile})
	}
	if c.Auth.TokenReview {
		kubeconfig := reviewer(c)
		s.TokenReviewer = auth.KubernetesReviewer(func() (*http.Client, string, error) {
			return kubernetes.HTTPClient(kubeconfig)
		}, tokenAudience)
	}
	return s
}

// caOf returns the settings of the certificate authority.
func caOf(c *config.Discoveryd) ca.Settings {
	return ca.Settings{CertFile: c.CA.CertFile, KeyFile: c.CA.KeyFile, RootFile: c.CA.RootFile,
		MaxTTL: c.CA.MaxTTL}
}

// required returns the names of the sources that may contain policies, except the source of type
// files, to which discovery.Options.AwaitFileListing applies.
func required(c *config.Discoveryd) (all []string) {
	for _, s := range c.Sources {
		if s.Type != store.FilesSource {
			all = append(all, s.Name)
		}
	}
	return all
}

// tokenAudience is the audience that Kubernetes' tokens for istiod have.
const tokenAudience = "istio-ca"

// reviewer returns the kubeconfig file for the API server that reviews tokens: that of the first
// source of type kubernetes, else that of the first registry of this type. "" stands for the
// in-cluster configuration.
func reviewer(c *config.Discoveryd) string {
	for _, s := range slices.Concat(c.Sources, c.Registries) {
		if s.Type == "kubernetes" {
			return s.Kubeconfig
		}
	}
	return ""
}

// settingsOf returns the settings of the discovery server that a reload can change.
func settingsOf(c *config.Discoveryd) discovery.Settings {
	return discovery.Settings{MeshConfigFile: c.MeshConfigFile,
		DebounceAfter: c.Push.DebounceAfter, DebounceMax: c.Push.DebounceMax}
}
