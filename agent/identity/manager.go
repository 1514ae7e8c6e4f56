package identity

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/fetch"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/resource"
)

// recheckInterval is the period of checks that need no event: expiry, and jumps of the clock.
const recheckInterval = time.Minute

// maxRequested bounds the number of secrets, because Envoy can request any number of secrets whose
// names are paths.
const maxRequested = 1000

// Options of a Manager. Now, Logger and EnvoyCannotReadReason may be nil.
type Options struct {
	Settings   Settings
	Watcher    Watcher // watches the files of all secrets; Manager.Run runs it
	Conditions *condition.Registry
	Logger     *slog.Logger
	Now        func() time.Time // the wall clock
	// EnvoyCannotReadReason returns why Envoy's user cannot read an open file, "" if it certainly
	// can. The Manager serves a file that Envoy requests by its path only if Envoy could read the
	// file itself: Envoy must not gain access through the agent's permissions.
	EnvoyCannotReadReason func(*os.File) string
	// UnreadableReason returns why the agent cannot read a path, and the fix; "" if that is
	// unknown. It may block. nil: always unknown.
	UnreadableReason func(path string) string
	HTTP             *http.Client // fetches SPIFFE bundles; nil: a client with the system's roots
	BundleFile       string       // file that stores the last roots of SPIFFE bundles; "": none
	// ReadEnvoySecret reads the secrets that Envoy has from SPIRE. Needed by provider "spire".
	ReadEnvoySecret ReadEnvoySecretFunc
}

// Manager holds the current version of each secret. Its methods may be called by any goroutine.
type Manager struct {
	lifecycle.Readiness
	options Options
	feed    *resource.Feed
	dirty   chan struct{} // has an element while a change is not written to disk yet

	mu sync.Mutex
	// running is the context of Run, which also ends the workers that other methods start. It is
	// nil before Run is called.
	running  context.Context
	settings Settings
	// provisional means that settings belong to a reload that may still be refused, and that their
	// provider is not the one of the settings in force.
	provisional bool
	// bundleURLs are the URLs of the SPIFFE bundles to fetch.
	bundleURLs []string
	entries    map[string]*entry
	bundles    map[string][]*x509.Certificate // roots by source (SetTrustBundle) or bundle URL
	fetchers   map[string]*fetcher            // of SPIFFE bundles, by URL
	published  map[string]string              // version in the feed, or absent, by name
	waiting    map[string]bool                // names of entries refused with errTooMany
	stats      Stats
	presented  map[string]*material // see SetEnvoyFileCertificates
	sealed     stored
	users      map[string][]string
}

// New returns a Manager. It reads no file; Run does.
func New(options Options) *Manager {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.HTTP == nil {
		options.HTTP = fetch.NewClient(nil)
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		options: options, feed: resource.NewOnDemandFeed(), dirty: make(chan struct{}, 1),
		settings: options.Settings, entries: map[string]*entry{}, published: map[string]string{},
		waiting: map[string]bool{},
		bundles: map[string][]*x509.Certificate{}, fetchers: map[string]*fetcher{},
		stats: Stats{Renewals: map[string]uint64{}, Failures: map[RenewalFailure]uint64{}},
	}
}

// Name returns the name of this component.
func (m *Manager) Name() string { return "identity" }

// Feed implements xds.Source. All proxies of this host share one feed of secrets, and each
// subscribes to those that it needs.
func (m *Manager) Feed(*corev3.Node) (*resource.Feed, error) { return m.feed, nil }

// Run obtains the configured secrets before Envoy requests them, and maintains all secrets until
// ctx ends. It does not wait for reads that hang.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.running = ctx
	settings := m.settings
	m.mu.Unlock()
	last, bundles := m.restore(settings), m.restoreBundles()
	m.feed.Publish(resource.Change{})
	m.mu.Lock()
	if last != nil {
		m.entry(RootCASecret)
		m.setCurrent(m.entry(DefaultSecret), last)
	}
	for _, url := range m.bundleURLs {
		m.bundles[url] = bundles[url]
	}
	m.applySettings(false)
	m.updateFetchers()
	m.mu.Unlock()

	m.MarkReady()
	go m.store(ctx)
	go func() {
		if err := m.options.Watcher.Run(ctx); err != nil {
			m.options.Logger.Error("cannot watch files of secrets", "error", err)
		}
	}()
	ticker := time.NewTicker(recheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C: // no event announces that a certificate has expired
			m.recheck()
		}
	}
}

// recheck updates the conditions.
func (m *Manager) recheck() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.update()
}

// Configure applies new settings. A secret remains unchanged until its new source has provided a
// version.
func (m *Manager) Configure(settings Settings) { m.configure(settings, false) }

// PrepareReload provides the secrets that the settings of a reload need and that do not exist yet.
// Secrets that a live Envoy may already use remain unchanged. No new secret is written to disk
// before Configure is called: if the reload is refused, Configure with the settings in force
// removes the new secrets.
func (m *Manager) PrepareReload(settings Settings) { m.configure(settings, true) }

func (m *Manager) configure(settings Settings, missingOnly bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.settings
	m.provisional = missingOnly && (m.provisional || now.files() != settings.files() ||
		now.spire() != settings.spire() || now.Issuer != settings.Issuer)
	if missingOnly {
		settings.OutputDir, settings.Sealed, settings.StaleStoreFile = now.OutputDir, now.Sealed, now.StaleStoreFile
	}
	m.settings = settings
	if m.running != nil {
		m.applySettings(missingOnly)
		m.update()
	}
	m.storeSoon()
}

// SetTrustBundle sets the root certificates of one source, such as MeshConfig; nil removes them.
// Envoy trusts them in addition to the provider's roots and those of other sources.
func (m *Manager) SetTrustBundle(source string, roots []*x509.Certificate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bundles[source] = roots
	if m.running != nil {
		m.update()
	}
	m.storeSoon()
}

// Subscribe implements xds.SecretSubscriptionObserver. The files of a secret that is not configured
// are read as long as an Envoy is subscribed to the secret.
func (m *Manager) Subscribe(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.entry(name).subscribers++
		m.start(name)
	}
	m.update()
}

// Unsubscribe implements xds.SecretSubscriptionObserver.
func (m *Manager) Unsubscribe(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	removed := false
	for _, name := range names {
		m.entries[name].subscribers--
		removed = m.remove(name) || removed
	}
	if removed {
		// PrepareReload has not replaced secrets that an Envoy of earlier settings was subscribed
		// to.
		m.applySettings(true)
	}
	m.update()
}

// KeyPair returns the current workload certificate, nil if there is none.
func (m *Manager) KeyPair() *pki.Pair {
	m.mu.Lock()
	defer m.mu.Unlock()
	if version := m.version(DefaultSecret); version != nil && version.source != fromSpire {
		return version.pair
	}
	return nil
}

// AuthorityRoots returns the roots that the authority sent with the current certificate and those
// of SetTrustBundle, nil if there are none. The agent trusts them for its own connections. They do
// not include the roots of SPIFFE bundles, which are authorities of other trust domains.
func (m *Manager) AuthorityRoots() []*x509.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	var announced []*x509.Certificate
	if version := m.version(DefaultSecret); version != nil && version.issuer != nil {
		announced = version.roots
	}
	return m.withBundles(announced, false)
}

// Secrets describes all secrets, including those of SetEnvoyFileCertificates, sorted by name.
func (m *Manager) Secrets() []SecretInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []SecretInfo
	for _, s := range m.statuses() {
		about := SecretInfo{Name: s.name}
		if s.version != nil {
			about = s.version.info(s.name)
		}
		if s.err != nil {
			about.Problem = s.err.Error()
		}
		about.File, about.Users = m.fileOf(s.name), m.users[s.name]
		about.Condition, about.ConditionSentence = s.condition, s.sentence
		if s.name == DefaultSecret && m.settings.Sealed != nil {
			about.Stored = StorePending
			if m.sealed.pair != nil && m.sealed == (stored{s.version, m.settings.Sealed}) {
				about.Stored = StoreSealed
			}
		}
		all = append(all, about)
	}
	return all
}

// Callers of the following methods hold mu.

func (m *Manager) entry(name string) *entry {
	e := m.entries[name]
	if e == nil {
		e = &entry{}
		m.entries[name] = e
	}
	return e
}

// applySettings makes the configured secrets match the settings and starts missing workers. With
// missingOnly, secrets that have a version remain unchanged.
func (m *Manager) applySettings(missingOnly bool) {
	wanted := map[string]definition{}
	if files := m.settings.files(); !files.empty() {
		wanted[DefaultSecret] = definition{files: SecretFiles{Cert: files.Cert, Key: files.Key}}
		wanted[RootCASecret] = definition{files: SecretFiles{Root: files.Root}}
	}
	if m.settings.spire() {
		wanted[DefaultSecret], wanted[RootCASecret] = definition{spire: true}, definition{spire: true}
	}
	if issuer := m.settings.Issuer; issuer != nil {
		wanted[DefaultSecret] = definition{
			issuer: issuer, ratio: m.settings.GraceRatio, jitter: m.settings.GraceJitter,
		}
		wanted[RootCASecret] = definition{}
	}
	for name := range wanted {
		m.entry(name)
	}
	for name, e := range m.entries {
		if missingOnly && e.current != nil && e.current.source != fromSpire && !e.provisional {
			continue
		}
		if name == DefaultSecret || name == RootCASecret {
			d, configured := wanted[name]
			if v := e.current; e.provisional && v != nil &&
				(e.definition != d || v.issuer != m.settings.Issuer) {
				e.withdraw()
			}
			e.provisional = m.provisional
			if e.definition != d {
				e.supersede()
			}
			e.definition, e.configured = d, configured
		} else if folder := e.definition.folder; folder != "" && folder != m.settings.CredentialsDir {
			e.supersede()
		}
		if !m.remove(name) {
			m.start(name)
		}
	}
	m.startWaiting()
}
