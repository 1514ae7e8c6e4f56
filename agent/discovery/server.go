// Package discovery is the discovery server: it translates files with Istio's YAML to Envoy's
// resources, incrementally. Package xds serves its feeds.
//
//	store (files → objects) → model (resolves references between objects)
//	→ view (per kind of proxy: translate, publish) → resource.Feed
//
// If an object is invalid, its previous version stays in force. If a client refuses a resource, the
// last accepted version of that resource stays in use.
package discovery

import (
	"context"
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/histogram"
	"outrider.org/outrider/agent/jwks"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/typedconfig"
	"outrider.org/outrider/agent/wasm"
)

// Problem is an error, warning or note about the configuration.
type Problem = object.Problem

// Server translates files to resources. It is ready once all files were read. Its methods are safe
// for concurrent use.
type Server struct {
	lifecycle.Readiness
	options      Options
	certificates *certificates
	keySets      *jwks.Fetcher
	modules      *wasm.Fetcher // nil: clients fetch the modules of extensions
	persisted    persisted
	refusalsSeen [sha256.Size]byte // refusalsMark at the last write; only Run uses it
	refusalsSum  [sha256.Size]byte // digest of the records in Options.RefusalFile; only Run uses it
	// calls of Rescan; each sent channel is closed once the scan is done
	rescan     chan chan struct{}
	calls      chan func()   // functions that inRun passes to the goroutine of Run
	reconsider chan struct{} // receives after a change of the field newer
	// the proxies' Envoy is newer than the linked API; see filterCheck
	newer    atomic.Bool
	nacked   chan struct{} // receives after a change of a feed's refusals
	accepted accepted      // updates that AcceptUpdate received and no push has applied yet
	received chan struct{} // receives after a change of accepted

	newestStream atomic.Uint64 // number of the newest stream on which a proxy accepted resources
	meshReads    atomic.Uint64 // number of reads of MeshConfig that have begun

	wake  chan struct{} // receives when Run must apply settings or store its state; see wakeRun
	ended chan struct{} // closed when Run has ended

	debounced, pushed *histogram.Histogram

	closed atomic.Pointer[string] // result of ResourcesWithheldReason; nil: ""
	// objects for which an older version of the agent restored an earlier version after a refusal;
	// nil: none
	reverted atomic.Pointer[lastgood.RevertedVersions]

	mu            sync.Mutex         // guards all fields below
	config        *configuration     // configuration read from the files
	views         map[string]*served // views by kind of proxy
	sharing       sharing
	outdated      bool // views that are not current (see namespaces.go) must be updated
	settings      Settings
	mesh          *mesh.Config // last valid MeshConfig, which is in force
	meshText      []byte       // text of the file from which mesh was read
	meshBad       bool         // the newest text of MeshConfig is invalid
	meshKnown     bool         // mesh was read from a valid text, and is not only the default
	meshProblems  []Problem
	mutualChanged bool        // MeshConfig changed mutual TLS, and clients may refuse the result
	meshRead      meshRead    // newest result of reading MeshConfig
	edits         []edit      // published changes of the files, the newest last
	objects       *objectFeed // feed of objects; nil: no client has requested it
	// refusals of earlier views and servers whose proxies have no view now
	refusals []refusedState
	problems []Problem // all current problems of the configuration
	reported []Problem // problems that are in the condition and were published as events
}

// New returns a server. It reads MeshConfig and Options.LastGoodFile; Run reads the other files.
func New(options Options) (*Server, error) {
	if err := options.Settings.AccessLog.Validate(); err != nil {
		return nil, err
	}
	roots := options.SystemRoots
	fill(&options)
	lastGood, stale := readLastGood(options)
	s := &Server{
		options: options, settings: options.Settings,
		persisted:  persisted{state: lastGood, stale: stale},
		ended:      make(chan struct{}),
		rescan:     make(chan chan struct{}),
		calls:      make(chan func()),
		reconsider: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		debounced: newDurations(), pushed: newDurations(),
		nacked: make(chan struct{}, 1), received: make(chan struct{}, 1), mesh: mesh.Default(),
		views: map[string]*served{}, sharing: none{},
	}
	s.keySets = s.newKeySets(roots)
	s.modules = s.newModules()
	s.refusals = s.readRefusals()
	s.reverted.Store(lastGood.RevertedByOldAgent)
	s.newer.Store(typedconfig.NewerThanLinkedAPI(options.Settings.EnvoyVersion))
	if options.FilesAreLocal {
		s.certificates = newCertificates(options.ProxyReadCheck, options.AgentReadCheck, inspectWait,
			options.Logger)
	}
	s.restoreMesh(lastGood.MeshConfig)
	s.takeMesh(s.readMesh(options.Settings.MeshConfigFile))
	options.OnTrustChange(s.mesh.TrustedCAs, s.mesh.SPIFFEBundleURLs)
	s.config = &configuration{namespace: options.Settings.Namespace,
		store: newStore(options, s.check(),
			lastGood), held: lastGood.Objects, away: lastGood.MissingPaths,
		folders:  lastGood.PolicyFolderInodes,
		policies: lastGood.PolicyCountsByFile, lost: lastGood.PolicyLocationsIncomplete}
	s.config.reset(s.newWorld())
	return s, nil
}

func newStore(o Options, check filterCheck, lastGood lastgood.State) *store.Store {
	return store.New(store.Options{Paths: o.Files, Namespace: o.Settings.Namespace,
		Validate: check.object, ValidateEnvoyFilters: check.unlinked, AwaitPaths: o.AwaitFileListing,
		LastGood: lastGood.Objects, MissingPaths: lastGood.MissingPaths,
		PolicyFolderInodes:        lastGood.PolicyFolderInodes,
		PolicyCountsByFile:        lastGood.PolicyCountsByFile,
		PolicyLocationsIncomplete: lastGood.PolicyLocationsIncomplete,
		TolerateUnknownFields: o.EarlierRunMayHaveServedFiles &&
			!lastGood.WriterRefusedUnknownFilterFields,
		Sources: o.Sources, RequiredSources: o.RequiredSources})
}

// Run reads the files, and reads changed files again, until the context ends. It returns nil.
func (s *Server) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { s.certificates.run(ctx, s.options.Logger) })
	watching.Go(func() { _ = s.keySets.Run(ctx) }) // keySets.Run always returns nil
	if s.modules != nil {
		watching.Go(func() { _ = s.modules.Run(ctx) }) // modules.Run always returns nil
	}
	started := time.Now()
	s.read(func(of *store.Store) []object.Change {
		return append(of.Load(), s.takeAccepted(of)...)
	}, nil)
	s.MarkReady()
	s.mu.Lock()
	s.options.Logger.Info("mesh configuration loaded", "services", s.config.world.ServiceHostCount(), "problems",
		len(s.problems), "took", time.Since(started))
	s.mu.Unlock()
	s.logRestored()
	rescan := s.rescan
	var rested <-chan time.Time
	for {
		if s.options.OnPush != nil {
			s.options.OnPush()
		}
		s.publishObjects()
		s.persist()
		select {
		case <-ctx.Done():
			close(s.ended)
			s.persist()
			return nil
		case done := <-rescan:
			took := s.scan(done)
			// after a scan, wait as long as it took, so that scans use at most half of Run's time
			rescan, rested = nil, time.After(took)
		case <-rested:
			rescan, rested = s.rescan, nil
		case call := <-s.calls:
			call()
		case <-s.wake:
			s.applyNamespaces()
		case <-s.reconsider:
			s.config.store.RevalidateInvalid()
			s.read((*store.Store).Load, nil)
		case <-s.keySets.Changed():
			s.publishKeySets()
		case <-s.modulesChanged():
			s.publishModules()
		case <-s.nacked:
			s.refused()
		case <-s.awaited():
			if s.appeared() {
				s.read((*store.Store).Load, nil)
			}
		case <-s.persisted.again:
		case paths, ok := <-s.options.ChangedPaths:
			if !ok {
				s.options.ChangedPaths = nil
				continue
			}
			s.publishChanges(ctx, paths)
		case <-s.received:
			s.publishChanges(ctx, []string{})
		case <-s.certificates.changes():
			if paths := s.certificates.takeChanged(); len(paths) > 0 {
				s.publishChanges(ctx, paths)
			}
		}
	}
}

// read reads files with a function and publishes the changes. Only Run may call it.
func (s *Server) read(read func(*store.Store) []object.Change, paths []string) {
	s.applyNamespaces()
	s.push(read(s.config.store), paths)
}

// wakeRun makes Run apply settings, fill new views and store the state. It is for callers that must
// not wait for the disk.
func (s *Server) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default: // the channel has a signal already
	}
}

// push applies changes of objects and of certificate files, and publishes the result in every view.
// Only Run may call it.
func (s *Server) push(changes []object.Change, paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reread(paths) {
		s.retry() // a listener that uses a changed certificate may be valid now
	}
	c := s.config
	now := edit{objects: map[object.Key]bool{}}
	if c.loaded { // the first load is logged as a whole, and the state before it is unknown
		s.logChanges(changes)
		for _, change := range changes {
			now.objects[change.NewElseOld().Key] = true
		}
	}
	if len(changes) > 0 {
		s.objectsChanged()
	}
	first := !c.loaded
	touched := c.apply(changes)
	c.recordStore()
	s.dropIdle(time.Now())
	if first || len(touched.ChangedPolicies) > 0 {
		s.requireKeySets()
		s.requireModules()
	}
	if s.close(touched) {
		s.reopen()
	}
	s.updateViews(touched)
	s.sharing.move(touched)
	s.edited(now)
	s.dropCertificates()
	s.reportProblems()
}

// Feed returns the feed of a proxy, which proxies of the same kind share. Its first snapshot is
// published once the files were read. The caller must watch the feed, because the server drops
// feeds without watchers after some minutes.
func (s *Server) Feed(node *corev3.Node) (*resource.Feed, error) {
	if RequestsIstioObjects(node) {
		return s.objectsFeed()
	}
	v, err := s.viewOf(node)
	if err != nil {
		return nil, err
	}
	return v.Feed(), nil
}

// Reload applies new settings, and sends refused resources to clients again. After an error, the
// previous settings remain in force.
func (s *Server) Reload(settings Settings) error { return s.configure(settings, true) }

// Configure applies new settings like Reload, but does not send refused resources again. It is for
// a start of the agent, when nobody has requested a reload.
func (s *Server) Configure(settings Settings) error { return s.configure(settings, false) }

func (s *Server) configure(settings Settings, retry bool) error {
	if err := settings.AccessLog.Validate(); err != nil {
		return err
	}
	if settings.Namespace == "" {
		settings.Namespace = s.options.Namespace
	}
	newer := typedconfig.NewerThanLinkedAPI(settings.EnvoyVersion)
	again := s.newer.Swap(newer) != newer
	if retry && s.reverted.Load() != nil && s.served() {
		s.reverted.Store(nil) // Envoy may accept the newest versions of these objects now
		again = true
	}
	if again {
		select {
		case s.reconsider <- struct{}{}:
		default: // the channel has a signal already
		}
	}
	read := s.readMesh(settings.MeshConfigFile)
	s.mu.Lock()
	s.settings = settings
	s.applyMesh(read)
	if retry {
		s.retry()
		if s.modules != nil {
			s.modules.RereadFiles()
		}
	}
	s.requireModules()
	s.reportProblems()
	s.mu.Unlock()
	s.wakeRun()
	return nil
}

// served reports whether the server has views of proxies.
func (s *Server) served() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.views) > 0
}

func (s *Server) current() Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings
}

// Name returns the server's name in logs and errors.
func (s *Server) Name() string { return "discovery" }
