package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/watch"
)

// ConditionNotStored is the condition that the file of a Fetcher cannot be written.
const ConditionNotStored = "wasm-modules-not-stored"

const (
	maxSources    = 64
	maxConcurrent = 4
	maxTotal      = 128 << 20 // bytes of all modules

	fetchTime   = 30 * time.Second // timeout of one attempt
	firstRetry  = time.Second
	lastRetry   = time.Minute
	retryJitter = 0.1

	maxErrorBytes = 300 // bytes of an error, which may contain text of a server
	idle          = time.Hour
)

// fileDelays debounce the events of files, which may be written slowly.
var fileDelays = watch.Delays{Debounce: 500 * time.Millisecond, MaxDelay: 5 * time.Second}

// Source identifies a module that a Fetcher fetches.
type Source struct {
	URL    string // file://, http://, https:// or oci://
	SHA256 string // hexadecimal; "": any
	// file with the credentials of registries, a Docker configuration (JSON); "": none
	SecretFile string
	// if the value changes, the Fetcher fetches the module again; "": it fetches the module once
	ConfigVersion string `json:"Version"`
}

func compareSources(a, b Source) int {
	return slices.Compare([]string{a.URL, a.SHA256, a.SecretFile, a.ConfigVersion},
		[]string{b.URL, b.SHA256, b.SecretFile, b.ConfigVersion})
}

// FetcherOptions configures a Fetcher.
type FetcherOptions struct {
	File string // path of a file (0600) that stores the modules for the next start; "": none

	AllowsLocalAddress func(host string) bool // see Client
	Conditions         *condition.Registry    // nil: nothing is reported
	Logger             *slog.Logger           // nil: nothing is logged
}

// Fetcher fetches modules in the background: SetSources sets which ones, and Module returns one
// that has already been fetched. A failed fetch is repeated, and a changed file is read again. Its
// methods may be called concurrently.
type Fetcher struct {
	lifecycle.Readiness
	options FetcherOptions
	client  Client
	// fetches runs one fetch of a source at a time: a fetch from a file system that hangs outlasts
	// its context.
	fetches  singleflight.Group
	files    *watch.Notifier // watches the files that are modules
	required chan struct{}   // signals that SetSources or RereadFiles has changed entries
	changed  chan struct{}

	// Used only by Run's goroutine.
	running  int
	outdated bool      // the stored modules differ from entries
	failed   time.Time // last failed attempt to write the file; zero: the last one succeeded

	mu      sync.Mutex // guards the following fields
	entries map[Source]*entry
	omitted map[Source]bool // required sources beyond maxSources
}

// entry is the state of one module.
type entry struct {
	code    []byte // nil: none yet
	due     time.Time
	busy    bool
	again   bool // the file may have changed during the fetch, so it is fetched once more
	unwatch func()
	retries backoff.Backoff
	err     error // error of the last attempt
}

// NewFetcher returns a Fetcher with the modules that a previous Fetcher stored in options.File.
func NewFetcher(options FetcherOptions) *Fetcher {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Conditions == nil {
		options.Conditions = condition.NewRegistry()
	}
	f := &Fetcher{options: options, client: Client{AllowsLocalAddress: options.AllowsLocalAddress},
		required: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		files:   watch.NewNotifier(fileDelays, options.Logger),
		entries: map[Source]*entry{}}
	f.restore()
	return f
}

// Name returns the name of the component.
func (f *Fetcher) Name() string { return "wasm" }

// Changed returns a channel that receives an element after a change of what Module returns.
func (f *Fetcher) Changed() <-chan struct{} { return f.changed }

// Module returns a module, or nil if none has been fetched yet, and the error of the last attempt
// to fetch it. It can return both: a module, and an error because its changed file is invalid.
func (f *Fetcher) Module(from Source) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.omitted[from] {
		return nil, fmt.Errorf("not fetched: more than %d Wasm modules are configured", maxSources)
	}
	e := f.entries[from]
	if e == nil {
		return nil, nil
	}
	return e.code, e.err
}

// SetSources sets the modules to fetch. It drops all others. It does not block.
func (f *Fetcher) SetSources(sources []Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.entries, func(from Source, e *entry) bool {
		drop := !slices.Contains(sources, from)
		f.outdated = f.outdated || drop && e.code != nil
		if drop && e.unwatch != nil {
			e.unwatch()
		}
		return drop
	})
	f.omitted = map[Source]bool{}
	for _, from := range slices.SortedFunc(slices.Values(sources), compareSources) {
		switch {
		case f.entries[from] != nil:
		case len(f.entries) >= maxSources:
			f.omitted[from] = true
		default:
			f.entries[from] = newEntry()
		}
		f.watch(from)
	}
	signal(f.required)
}

// watch reads the module of an entry again when its file changes. Callers hold mu.
func (f *Fetcher) watch(from Source) {
	e, path := f.entries[from], from.path()
	if e == nil || e.unwatch != nil || path == "" {
		return
	}
	e.unwatch = f.files.Watch([]string{path}, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		e.refetch()
		signal(f.required)
	})
}

// refetch makes the entry due now. If a fetch is in progress, another one follows it.
func (e *entry) refetch() {
	e.due, e.again = time.Time{}, e.busy
	e.retries.Reset()
}

// RereadFiles makes the Fetcher read the modules in files again, and immediately retry the fetches
// of modules that it lacks. It does not block.
func (f *Fetcher) RereadFiles() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for from, e := range f.entries {
		if from.path() != "" || e.code == nil {
			e.refetch()
		}
	}
	signal(f.required)
}

func newEntry() *entry {
	return &entry{retries: backoff.Backoff{Min: firstRetry, Max: lastRetry, Jitter: retryJitter}}
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
	fetches.Go(func() {
		if err := f.files.Run(ctx); err != nil {
			f.options.Logger.Warn("cannot watch the files of Wasm modules", "error", err)
		}
	})
	for {
		next := f.begin(func(from Source) {
			fetches.Go(func() {
				r := f.fetch(ctx, from)
				select {
				case results <- r:
				case <-ctx.Done():
				}
			})
		})
		timer := time.NewTimer(min(next, f.store()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-f.required:
		case r := <-results:
			f.finish(r)
		}
		timer.Stop()
	}
}

// begin starts the fetches that are due and returns the time until the next one.
func (f *Fetcher) begin(start func(Source)) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := idle
	for _, from := range slices.SortedFunc(maps.Keys(f.entries), compareSources) {
		e := f.entries[from]
		switch {
		case e.busy:
		case time.Until(e.due) > 0:
			next = min(next, time.Until(e.due))
		case f.running < maxConcurrent:
			f.running++
			e.busy = true
			start(from)
		}
	}
	return next
}

// finish stores the result of a fetch.
func (f *Fetcher) finish(r result) {
	f.running--
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entries[r.from]
	if e == nil || !e.busy {
		return // SetSources has dropped the source meanwhile
	}
	total := len(r.code)
	for _, other := range f.entries {
		if other != e {
			total += len(other.code)
		}
	}
	if r.err == nil && total > maxTotal {
		r.err = fmt.Errorf("not stored: all modules together would have more than %d MB",
			maxTotal>>20)
	}
	e.busy = false
	defer func() {
		if e.again {
			e.due, e.again = time.Time{}, false
		}
	}()
	if r.err != nil {
		e.due = time.Now().Add(e.retries.Next())
		if e.err == nil || e.err.Error() != r.err.Error() {
			signal(f.changed)
		}
		e.err = r.err
		return
	}
	e.retries.Reset()
	if e.err != nil {
		signal(f.changed)
	}
	e.due, e.err = time.Now().Add(idle*24*365), nil
	if !bytes.Equal(e.code, r.code) {
		f.options.Logger.Info("Wasm module fetched", "url", RedactURL(r.from.URL), "bytes",
			len(r.code))
		e.code, f.outdated = r.code, true
		signal(f.changed)
	}
}

// shorten bounds the text of an error and removes credentials.
func shorten(err error) error {
	text := RedactURL(err.Error())
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "…"
	}
	return errors.New(text)
}
