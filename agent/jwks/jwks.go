// Package jwks fetches the key sets (JWKS) with which proxies verify tokens. Run fetches them in
// the background, and KeySet returns the last valid version. Each key set is fetched again every 20
// minutes. If that fails, the last valid version stays in use, also after a restart (Options.File).
package jwks

import (
	"context"
	"crypto/x509"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/fetch"
	"outrider.org/outrider/agent/lifecycle"
)

// Codes of the conditions.
const (
	ConditionUnavailable = "key-set-unavailable" // a key set cannot be fetched
	ConditionNotStored   = "key-sets-not-stored" // Options.File cannot be written
)

const (
	maxSources    = 256
	maxConcurrent = 8
	maxBytes      = 128 << 10 // limit of a key set or OpenID configuration
	maxTotal      = 8 << 20   // limit of all key sets together

	refreshAfter = 20 * time.Minute // as in Istio
	firstRetry   = time.Second
	lastRetry    = time.Minute
	retryJitter  = 0.1

	defaultTime = 5 * time.Second
	maxTime     = 30 * time.Second

	// unusedFor is how long a key set is retained that no proxy requires.
	unusedFor = 7 * 24 * time.Hour
)

// Source identifies where a key set is fetched. Either URI or Issuer is set.
type Source struct {
	URI    string // URI of the key set
	Issuer string // issuer whose OpenID configuration contains the URI
}

// SourceOf returns the source of the key set for an issuer's tokens. uri is the jwksUri of a
// RequestAuthentication, or "".
func SourceOf(issuer, uri string) Source {
	if uri != "" {
		return Source{URI: uri}
	}
	return Source{Issuer: issuer}
}

func compareSources(a, b Source) int {
	return strings.Compare(a.URI+"\x00"+a.Issuer, b.URI+"\x00"+b.Issuer)
}

// Options configure a Fetcher.
type Options struct {
	File string // stores the key sets for the next start, with mode 0600; "": none

	// AllowsLocalAddress reports whether a host may have local addresses: loopback, link-local, or
	// of a cloud's metadata service. nil: no host may. It must be safe for concurrent use.
	AllowsLocalAddress func(host string) bool
	// Roots returns the roots that HTTPS servers are verified with. It is called once, before the
	// first fetch. If it is nil or returns nil, the system's roots are used.
	Roots func() *x509.CertPool

	Refresh time.Duration // interval of fetches that succeed; 0: 20 minutes

	Conditions *condition.Registry // nil: failures are only logged
	Logger     *slog.Logger        // nil: nothing is logged
}

// Fetcher fetches the key sets that SetSources names. Its methods may be called concurrently.
type Fetcher struct {
	lifecycle.Readiness
	options  Options
	client   func() *http.Client
	required chan struct{} // signals that SetSources was called
	changed  chan struct{}

	// The following fields are used by Run only.
	running     int
	written     time.Time // last attempt to write the file
	outdated    bool      // the file lacks the time of the last fetch, or contains a removed entry
	changedKeys bool      // the file lacks a newer key set
	storeFailed bool

	mu      sync.Mutex // guards the following fields
	entries map[Source]*entry
	omitted []Source // sources beyond maxSources, which are not fetched
	known   bool     // SetSources was called
}

// entry is the key set of a source. Only Run writes it, except required, timeout and due.
type entry struct {
	text    string    // key set; "": none was fetched yet
	fetched time.Time // time of the last successful fetch

	required bool
	timeout  time.Duration
	due      time.Time
	busy     bool
	retries  backoff.Backoff
	err      error // error of the last attempt
}

// New returns a Fetcher with the key sets that an earlier one stored in Options.File.
func New(options Options) *Fetcher {
	if options.AllowsLocalAddress == nil {
		options.AllowsLocalAddress = func(string) bool { return false }
	}
	if options.Refresh == 0 {
		options.Refresh = refreshAfter
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Conditions == nil {
		options.Conditions = condition.NewRegistry()
	}
	if options.Roots == nil {
		options.Roots = func() *x509.CertPool { return nil }
	}
	f := &Fetcher{options: options,
		client: sync.OnceValue(func() *http.Client {
			return fetch.NewClient(fetch.NewTransport(options.AllowsLocalAddress, options.Roots()))
		}),
		required: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		entries: map[Source]*entry{}}
	f.restore()
	return f
}

// Name returns the name of this component.
func (f *Fetcher) Name() string { return "jwks" }

// Changed returns a channel that receives a value after a result of KeySet has changed.
func (f *Fetcher) Changed() <-chan struct{} { return f.changed }

// KeySet returns the last good key set of a source, "" if there is none.
func (f *Fetcher) KeySet(from Source) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.entries[from]; e != nil {
		return e.text
	}
	return ""
}

// SetSources sets the sources to fetch, each with a timeout for an attempt (0: 5 s). It does not
// block.
func (f *Fetcher) SetSources(timeouts map[Source]time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := 0
	for from, e := range f.entries {
		timeout, required := timeouts[from]
		if required && !e.required {
			e.due = time.Time{}
		}
		if e.required = required; required {
			e.setTime(timeout)
			count++
		}
	}
	f.omitted, f.known = nil, true
	for _, from := range slices.SortedFunc(maps.Keys(timeouts), compareSources) {
		switch {
		case f.entries[from] != nil:
		case count < maxSources:
			e := f.newEntry()
			e.required = true
			e.setTime(timeouts[from])
			f.entries[from] = e
			count++
		default:
			f.omitted = append(f.omitted, from)
		}
	}
	signal(f.required)
}

// newEntry returns an entry that is due at once. Its pauses between attempts are at most as long as
// the interval of successful fetches.
func (f *Fetcher) newEntry() *entry {
	return &entry{retries: backoff.Backoff{Min: min(firstRetry, f.options.Refresh),
		Max: min(lastRetry, f.options.Refresh), Jitter: retryJitter}}
}

func (e *entry) setTime(timeout time.Duration) {
	if timeout <= 0 {
		timeout = defaultTime
	}
	e.timeout = min(timeout, maxTime)
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default: // a signal is pending
	}
}

// Run fetches until ctx ends.
func (f *Fetcher) Run(ctx context.Context) error {
	f.MarkReady()
	results := make(chan result)
	var fetches sync.WaitGroup
	defer fetches.Wait()
	for {
		next := f.begin(func(from Source, timeout time.Duration) {
			fetches.Go(func() {
				r := f.fetch(ctx, from, timeout)
				select {
				case results <- r:
				case <-ctx.Done():
				}
			})
		})
		f.report()
		timer := time.NewTimer(min(next, f.store()))
		select {
		case <-ctx.Done():
			timer.Stop()
			if f.options.File != "" && (f.outdated || f.changedKeys) {
				f.write()
			}
			return nil
		case <-timer.C:
		case <-f.required:
		case r := <-results:
			f.finish(r)
		}
		timer.Stop()
	}
}

// begin starts the fetches that are due, the most overdue first, and returns the time until the
// next one is due.
func (f *Fetcher) begin(start func(Source, time.Duration)) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	var due []Source
	next := unusedFor
	for from, e := range f.entries {
		switch {
		case e.busy:
		case !e.required:
			if f.known && (now.Sub(e.fetched) > unusedFor || len(f.entries) > maxSources) {
				delete(f.entries, from)
				f.outdated = f.outdated || e.text != ""
			}
		case e.due.After(now):
			next = min(next, e.due.Sub(now))
		default:
			due = append(due, from)
		}
	}
	slices.SortFunc(due, func(a, b Source) int { return f.entries[a].due.Compare(f.entries[b].due) })
	for _, from := range due[:min(len(due), maxConcurrent-f.running)] {
		f.running++
		f.entries[from].busy = true
		start(from, f.entries[from].timeout)
	}
	return next
}

// finish stores the result of a fetch in its entry.
func (f *Fetcher) finish(r result) {
	f.running--
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entries[r.from]
	if r.err == nil && f.total()-len(e.text)+len(r.text) > maxTotal {
		r.err = errTotal
	}
	e.busy, e.err = false, r.err
	if r.err != nil {
		e.due = time.Now().Add(e.retries.Next())
		return
	}
	e.retries.Reset()
	e.fetched = time.Now()
	e.due = e.fetched.Add(f.options.Refresh)
	f.outdated = true
	if !equal(e.text, r.text) {
		f.options.Logger.Info("JWT key set changed", "from", r.from.redacted())
		e.text = r.text
		f.changedKeys = true
		signal(f.changed)
	}
}

// total returns the size of all key sets. Callers hold mu.
func (f *Fetcher) total() int {
	total := 0
	for _, e := range f.entries {
		total += len(e.text)
	}
	return total
}
