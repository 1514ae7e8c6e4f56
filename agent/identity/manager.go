package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/part"
	"outrider.org/outrider/agent/resource"
)

// maxRequested bounds the workers of secrets that Envoy requests by the path of their files.
const maxRequested = 1000

// Options of a Manager. Now, Logger and Denied may be nil.
type Options struct {
	Settings Settings
	Watch    func() Watcher // a new watcher, for the files of one secret
	Board    *condition.Board
	Logger   *slog.Logger
	Now      func() time.Time // the wall clock
	// Denied returns why Envoy's user cannot read a file, "" if it can. The Manager reads a file that
	// Envoy requests by its path only if Envoy could: it must not lend Envoy the agent's rights.
	Denied func(path string) string
	// Observe reads the secrets that Envoy has from SPIRE. Needed by Settings.Spire.
	Observe Observe
}

// Manager holds the current version of each secret. Its methods may be called by any goroutine.
type Manager struct {
	part.Readiness
	options Options
	feed    *resource.Feed
	dirty   chan struct{} // holds one: there is something to store

	mu        sync.Mutex
	running   context.Context // of Run; nil before
	settings  Settings
	entries   map[string]*entry
	bundle    []*x509.Certificate // of the mesh configuration
	published map[string]string   // name → version in the feed; absent: known not to exist
	stats     Stats
}

// entry is a secret that is configured or subscribed to.
type entry struct {
	configured  bool
	subscribers int
	definition  definition
	stop        context.CancelFunc // of its worker; nil: none runs
	current     *material
	served      *material // in the feed; roots are merged anew each time
	started     time.Time // when the worker was, by the wall clock
	err         error     // of the last attempt
	failing     time.Time // since when, by the wall clock; zero: not
}

// definition is what a worker was started for.
type definition struct {
	files  Files
	folder string // of credentials, for the secret of one
	spire  bool
	issuer Issuer
	ratio  float64
	jitter float64
}

// New returns a Manager. Nothing is read before Run.
func New(options Options) *Manager {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		options: options, feed: resource.NewFeedOnDemand(), dirty: make(chan struct{}, 1),
		settings: options.Settings, entries: map[string]*entry{}, published: map[string]string{},
		stats: Stats{Renewals: map[string]uint64{}, Failures: map[Failure]uint64{}},
	}
}

// Name is the part's name.
func (m *Manager) Name() string { return "identity" }

// Feed implements xds.Source: all proxies of this host have the same secrets, and each subscribes
// to those that it needs.
func (m *Manager) Feed(*corev3.Node) (*resource.Feed, error) { return m.feed, nil }

// Run obtains the configured secrets ahead of the first request and maintains all until ctx ends.
// It does not wait for reads that hang.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.running = ctx
	settings := m.settings
	m.mu.Unlock()
	last := m.restore(settings)
	m.feed.Publish(resource.Change{})
	m.mu.Lock()
	if last != nil {
		m.entry(Default).current = last
	}
	m.define()
	m.judge()
	m.mu.Unlock()

	m.MarkReady()
	go m.store(ctx)
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C: // expiry is no event
			m.recheck()
		}
	}
}

// recheck brings conditions up to date.
func (m *Manager) recheck() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judge()
}

// Configure applies new settings. Secrets stay as they are until their new source has provided a
// version.
func (m *Manager) Configure(settings Settings) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settings = settings
	if m.running != nil {
		m.define()
		m.judge()
	}
	m.changed()
}

// SetTrustBundle sets the roots of the mesh configuration, which are trusted beside the provider's.
func (m *Manager) SetTrustBundle(roots []*x509.Certificate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bundle = roots
	m.judge()
	m.changed()
}

// Subscribe implements xds.Subscriber. A secret that is not configured is read as long as somebody
// subscribes to it.
func (m *Manager) Subscribe(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.entry(name).subscribers++
		m.start(name)
	}
	m.judge()
}

// Unsubscribe implements xds.Subscriber.
func (m *Manager) Unsubscribe(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.entries[name].subscribers--
		m.forget(name)
	}
	m.judge()
}

// Pair returns the current workload certificate, nil if there is none.
func (m *Manager) Pair() *pki.Pair {
	m.mu.Lock()
	defer m.mu.Unlock()
	if version := m.version(Default); version != nil && version.source != FromSpire {
		return version.pair
	}
	return nil
}

// AnnouncedRoots returns the roots that the authority sent with the current certificate, nil if
// there is none.
func (m *Manager) AnnouncedRoots() []*x509.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	if version := m.version(Default); version != nil && version.issuer != nil {
		return version.roots
	}
	return nil
}

// Secrets describes all secrets, sorted by name.
func (m *Manager) Secrets() []Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Info
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		about := Info{Name: name}
		if version := m.version(name); version != nil {
			about = version.info(name)
		}
		if err := m.entries[name].err; err != nil {
			about.Problem = err.Error()
		}
		all = append(all, about)
	}
	return all
}

// The following methods expect mu to be held.

func (m *Manager) entry(name string) *entry {
	e := m.entries[name]
	if e == nil {
		e = &entry{}
		m.entries[name] = e
	}
	return e
}

// define makes the configured secrets those of the settings, and starts what does not run.
func (m *Manager) define() {
	wanted := map[string]definition{}
	if files := m.settings.Files; !files.empty() {
		wanted[Default] = definition{files: Files{Cert: files.Cert, Key: files.Key}}
		wanted[RootCA] = definition{files: Files{Root: files.Root}}
	}
	if m.settings.Spire {
		wanted[Default], wanted[RootCA] = definition{spire: true}, definition{spire: true}
	}
	if issuer := m.settings.Issuer; issuer != nil {
		wanted[Default] = definition{
			issuer: issuer, ratio: m.settings.Ratio, jitter: m.settings.Jitter,
		}
		wanted[RootCA] = definition{}
	}
	for name := range wanted {
		m.entry(name)
	}
	for name, e := range m.entries {
		if name == Default || name == RootCA {
			d, configured := wanted[name]
			if e.definition != d {
				m.end(e)
			}
			e.definition, e.configured = d, configured
		} else if folder := e.definition.folder; folder != "" && folder != m.settings.Credentials {
			m.end(e)
		}
		if !m.forget(name) {
			m.start(name)
		}
	}
}

// start starts the worker of a secret, unless it runs or something else provides the secret.
func (m *Manager) start(name string) {
	e := m.entries[name]
	if m.running == nil || e.stop != nil {
		return
	}
	e.err, e.failing = nil, time.Time{}
	var from source
	from, e.err = m.origin(name, e)
	if errors.Is(e.err, errNoProvider) && e.current != nil {
		e.err = nil // the provider was turned off, and an Envoy that drains has the secret
		return
	}
	if e.err == nil && !e.configured && m.requested() >= maxRequested {
		e.err = errTooMany
	}
	if e.err != nil {
		e.failing = m.options.Now().Add(-settle) // waiting does not help
		return
	}
	d := e.definition
	if d == (definition{}) {
		return // the roots, which come with the certificate
	}
	ctx, stop := context.WithCancel(m.running)
	e.stop, e.started = stop, m.options.Now()
	time.AfterFunc(settle, m.recheck) // neither a hanging read nor expiry is an event
	tell := func(version *material, err error) { m.report(ctx, name, version, err) }
	if d.spire {
		go m.observe(ctx, name, tell)
		return
	}
	if d.issuer == nil {
		go m.follow(ctx, from, tell)
		return
	}
	var last *Issued
	if v := e.current; v != nil && v.pair != nil && v.issuer == d.issuer {
		last = &Issued{Pair: v.pair, Roots: v.roots, Obtained: v.obtained, Source: v.source}
	}
	go m.renew(ctx, m.settings, last, tell)
}

// origin returns what a worker has to read for a secret, and records it in the entry's definition.
func (m *Manager) origin(name string, e *entry) (from source, err error) {
	switch {
	case credential.Is(name) && m.settings.Credentials != "":
		found, err := credential.Locate(m.settings.Credentials, name)
		if err != nil {
			return source{}, err
		}
		from = source{usage: pki.Either, credential: &found, files: Files{
			Cert: found.Cert, Key: found.Key, Root: found.Authorities(),
		}}
		e.definition = definition{files: from.files, folder: m.settings.Credentials}
		return from, nil
	case name != Default && name != RootCA:
		e.definition.files, err = parseName(name)
		return source{files: e.definition.files, usage: pki.Either, denied: m.options.Denied}, err
	case !e.configured:
		return source{}, errNoProvider
	case e.definition == (definition{}) && m.settings.Issuer == nil:
		return source{}, errNoRoots
	}
	return source{files: e.definition.files, usage: pki.Both}, nil
}

// requested returns the number of workers of secrets that are not configured.
func (m *Manager) requested() (count int) {
	for _, e := range m.entries {
		if !e.configured && e.stop != nil {
			count++
		}
	}
	return count
}

// end stops the worker of a secret.
func (m *Manager) end(e *entry) {
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
	e.err, e.failing = nil, time.Time{}
}

// forget drops a secret that is neither configured nor subscribed to, and reports whether it did.
func (m *Manager) forget(name string) bool {
	e := m.entries[name]
	if e.configured || e.subscribers > 0 {
		return false
	}
	m.end(e)
	delete(m.entries, name)
	return true
}

// report accepts what a worker found. It takes mu.
func (m *Manager) report(ctx context.Context, name string, version *material, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return // replaced or forgotten meanwhile
	}
	e := m.entries[name]
	if e.err = err; err == nil {
		e.current, e.failing = version, time.Time{}
		m.changed()
	} else {
		m.stats.Failures[Failure{Resource: name, Reason: reason(err)}]++
		if e.failing.IsZero() {
			e.failing = m.options.Now()
		}
	}
	m.judge()
}

// changed has the stores written.
func (m *Manager) changed() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}
