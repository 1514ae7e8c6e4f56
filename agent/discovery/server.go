// Package discovery is the discovery server: it turns files of Istio's YAML into Envoy's resources,
// and a change into the resources that it touches. It knows nothing of an agent, of connections or
// of who sends the resources.
//
//	store (files → objects) → model (what they mean together)
//	→ view (per kind of proxy: translate, publish) → resource.Feed
//
// What is invalid, or refused by Envoy, changes nothing: the version before stays in force.
package discovery

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/histogram"
	"outrider.org/outrider/agent/resource"
)

// Problem is one thing that is wrong with what was read.
type Problem = object.Problem

// AccessLog is where generated listeners log requests and connections.
type AccessLog = mesh.AccessLog

// Taken is an address of the machine that somebody listens on who is no part of the mesh.
type Taken = mesh.Taken

// Options of a Server.
type Options struct {
	Files     []string // files, and directories with all *.yaml, *.yml and *.json below them
	Namespace string   // of objects and proxies that name none, without Settings; "" is default
	Domain    string   // what short host names end in; "" is cluster.local
	Settings  Settings // at first; see Configure

	// OwnAddresses gives proxies that differ in nothing but their addresses resources of their own,
	// which without interception only inbound listeners of a Sidecar need. Else they share all, and
	// such listeners say where they bind.
	OwnAddresses bool
	Identity     bool // proxies get a certificate of the mesh over SDS, for ISTIO_MUTUAL

	// LastGood is the file (0600) that stores what is in force although its text is invalid now, or
	// Envoy refused it; "": none, so that a server which starts on an invalid file does not serve
	// its objects.
	LastGood string

	MaxViews    int    // kinds of proxies that are served at the same time; 0: 4,096
	SystemRoots string // file of the authorities trusted by default; "" is the system's

	// Changes brings paths that changed: files, or directories to look through. nil: nothing
	// changes.
	Changes <-chan []string

	// Watch has Changes bring the paths of these files too, in place of those of the call before:
	// proxies read certificates from them, and are told to do it again. It must not wait for
	// Changes. nil: proxies are on other machines.
	Watch func(files []string) error

	Denied Denied // which of these files proxies cannot read; nil: not known

	Board  *condition.Board // nil: problems are only returned
	Logger *slog.Logger     // nil: nothing is logged
}

// Settings are what can change while the server runs.
type Settings struct {
	Namespace      string        // of objects and proxies that name none; "" = Options.Namespace
	MeshConfigFile string        // Istio's MeshConfig; "" = its defaults
	Taken          []Taken       // where nothing of the mesh can listen
	AccessLog      AccessLog     // "" = as MeshConfig has it
	DebounceAfter  time.Duration // quiet time before a push; 0: at once
	DebounceMax    time.Duration // longest delay of a push
}

// Server turns files into resources for as long as it runs.
type Server struct {
	options Options
	kept    kept
	ready   chan struct{}
	rescan  chan chan struct{} // closed once it is done
	joining chan struct{}      // there are realms to be filled

	newestStream atomic.Uint64 // of newestView

	unwritten chan struct{} // what is in force may have changed without a file having
	ended     chan struct{} // closed when Run ends

	debounced, pushed *histogram.Histogram

	closed atomic.Pointer[string] // see Closed

	mu           sync.Mutex         // guards what follows
	realms       map[string]*realm  // by namespace
	newestView   *served            // view of the proxy that connected last; nil: not known
	here         *realm             // the one that counts: of the settings, once it is filled
	expected     []expected         // the newest last
	inhabited    []string           // namespaces that proxies are in; see Keep
	views        map[string]*served // by kind of proxy
	settings     Settings
	recent       []*applied   // changes that Envoy may yet refuse, the oldest first
	mesh         *mesh.Config // as the file was last without an error
	meshText     []byte       // the file's, then
	meshBad      bool         // it has an error now
	meshProblems []Problem
	refusedMesh  *lastgood.RefusedMesh // nil: none
	certificates *certificates
	refusals     map[resource.Key]refusal
	problems     []Problem // all, as last told
}

// New returns a server that has read nothing yet.
func New(options Options) (*Server, error) {
	if err := options.Settings.AccessLog.Validate(); err != nil {
		return nil, err
	}
	fill(&options)
	lastGood, stale := recall(options)
	s := &Server{
		options: options, settings: options.Settings,
		kept:  kept{state: lastGood, stale: stale},
		ready: make(chan struct{}), ended: make(chan struct{}),
		rescan: make(chan chan struct{}), joining: make(chan struct{}, 1),
		unwritten: make(chan struct{}, 1),
		debounced: newDurations(), pushed: newDurations(),
		mesh: mesh.Default(), refusedMesh: lastGood.RefusedMesh,
		realms: map[string]*realm{}, views: map[string]*served{},
		refusals: map[resource.Key]refusal{},
		certificates: &certificates{watch: options.Watch, denied: options.Denied,
			logger: options.Logger, files: map[string]*certificateFile{}},
	}
	s.restoreMesh(lastGood.Mesh)
	s.readMesh()
	s.here = s.newRealm(options.Settings.Namespace)
	s.here.store, s.here.held = newStore(options, lastGood.Objects), lastGood.Objects
	s.here.expectRefused(lastGood.Refused)
	if lastGood.Complete {
		s.here.recall(lastGood.Objects)
	}
	s.realms[s.here.namespace] = s.here
	return s, nil
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
	if o.SystemRoots == "" {
		o.SystemRoots = systemRoots()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func newStore(o Options, lastGood []*object.Object) *store.Store {
	return store.New(store.Options{Paths: o.Files, Namespace: o.Settings.Namespace,
		Validate: validate.Object, LastGood: lastGood})
}

// Run reads the files at once, and again what changes, until the context ends; its error is nil
// then.
func (s *Server) Run(ctx context.Context) error {
	started := time.Now()
	s.read((*store.Store).Load, nil)
	close(s.ready)
	s.mu.Lock()
	s.options.Logger.Info("mesh configuration loaded", "services", s.here.world.Hosts(), "problems",
		len(s.problems), "took", time.Since(started))
	s.mu.Unlock()
	s.tellRecalled()
	s.remember()
	remember := func() {
		if ctx.Err() == nil { // else it is done once more, below
			s.remember()
		}
	}
	rescan := s.rescan
	var rested <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			close(s.ended) // what is told from here on is written by those who tell
			s.remember()
			return nil
		case done := <-rescan:
			took := s.scan(done)
			// whoever asks, half of the time is for everything else
			rescan, rested = nil, time.After(took)
			remember()
		case <-rested:
			rescan, rested = s.rescan, nil
		case <-s.joining:
			s.join()
			remember()
		case <-s.unwritten:
			remember()
		case paths, ok := <-s.options.Changes:
			if !ok {
				s.options.Changes = nil
				continue
			}
			begun := time.Now()
			if paths = s.debounce(ctx, paths); ctx.Err() == nil {
				s.debounced.Observe(time.Since(begun))
				begun = time.Now()
				s.remesh(paths)
				s.read(func(of *store.Store) []store.Change { return of.Reload(paths) }, paths)
				s.pushed.Observe(time.Since(begun))
				remember()
			}
		}
	}
}

// Ready is closed once the files were read for the first time.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// debounce gathers changes until it was quiet for DebounceAfter, at most for DebounceMax.
func (s *Server) debounce(ctx context.Context, paths []string) []string {
	deadline := time.Now().Add(s.current().DebounceMax)
	for {
		wait := min(s.current().DebounceAfter, time.Until(deadline))
		if wait <= 0 {
			return paths
		}
		quiet := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			quiet.Stop()
			return paths
		case more, ok := <-s.options.Changes:
			quiet.Stop()
			if !ok {
				s.options.Changes = nil
			}
			paths = append(paths, more...)
		case <-s.joining: // a proxy may wait for it
			quiet.Stop()
			s.join()
		case <-quiet.C:
			return paths
		}
	}
}

// read reads for all realms, and publishes. Only Run may call it.
func (s *Server) read(read func(*store.Store) []store.Change, paths []string) {
	changes := map[*realm][]store.Change{}
	for _, r := range s.filled() {
		changes[r] = read(r.store)
	}
	s.push(changes, paths)
}

// push takes changes of objects, by realm, and of files in, and publishes what they change in every
// view. Only Run may call it.
func (s *Server) push(changes map[*realm][]store.Change, paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reread(paths)
	if len(s.certificates.changed(paths)) > 0 {
		s.retry() // a listener that needs one may be right now
	}
	touched, now := map[*realm]model.Touched{}, &applied{}
	for r, of := range changes {
		of = r.admit(of)
		if r == s.here && r.loaded { // the first load is logged as a whole
			s.logChanges(of)
		}
		if r.loaded { // else nothing is known of what was before
			for _, c := range of {
				now.objects = append(now.objects, objectChange{r, c})
			}
		}
		r.loaded = true
		touched[r] = r.apply(of)
		r.stored, r.held = r.store.Problems(), r.store.Held()
	}
	s.settle()
	s.dropIdle(time.Now())
	for _, v := range s.views {
		if of, ok := touched[v.realm]; ok {
			v.update(of)
		}
	}
	s.applied(now)
	s.watchCertificates()
	s.tellProblems()
}

// Feed is what a proxy gets: that of its kind, shared by all that are alike. It publishes for the
// first time once the files were read. An error says why there is nothing for such a proxy. Whoever
// reads from the feed follows it: one that nobody follows is kept up to date for some minutes only.
func (s *Server) Feed(node *corev3.Node) (*resource.Feed, error) {
	v, err := s.viewOf(node)
	if err != nil {
		return nil, err
	}
	return v.Feed(), nil
}

// Configure puts other settings into effect, at once. An error says what is wrong with them; those
// before go on then.
func (s *Server) Configure(settings Settings) error {
	if err := settings.AccessLog.Validate(); err != nil {
		return err
	}
	if settings.Namespace == "" {
		settings.Namespace = s.options.Namespace
	}
	s.mu.Lock()
	s.settings = settings
	s.need(settings.Namespace)
	s.settle()
	s.refusedMesh = nil // Envoy may accept it now
	s.applyMesh()
	s.retry()
	s.tellProblems()
	s.mu.Unlock()
	s.rememberSoon() // whoever puts settings into effect does not wait for a disk
	return nil
}

func (s *Server) current() Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings
}

// Name is the part's name in logs and errors.
func (s *Server) Name() string { return "discovery" }
