// Package memory is a configuration source whose objects clients write over HTTP, for tests and
// tools. It is empty after a restart. Package record then serves the objects stored before, until
// clients write them again or the program is reloaded.
//
//	PUT, GET, DELETE /objects/KIND/NAMESPACE/NAME with Authorization: Bearer TOKEN
package memory

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/readfile"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// Limits of the write API, over which clients write objects.
const (
	maxBody    = 1 << 20 // maximum size of one object in bytes
	maxObjects = 100_000
	maxBytes   = 256 << 20 // maximum size of all objects in bytes
	maxTime    = 30 * time.Second
)

var limits = admission.Limits{Total: 64, PerKey: 32}

// Source is a configuration source, or a service registry whose objects are ServiceEntries.
type Source struct {
	config   *config.Source
	registry bool
	sink     source.Sink
	log      *slog.Logger

	mu     sync.Mutex
	texts  map[string][]byte // objects as YAML or JSON, by path of their input
	bytes  int
	synced bool
	since  time.Time
	err    error // error of the last attempt to bind the address; nil: none, or bound
}

// New returns a source that delivers to sink. If registry is true, it accepts only ServiceEntries.
func New(c *config.Source, registry bool, sink source.Sink, log *slog.Logger) *Source {
	return &Source{config: c, registry: registry, sink: sink, log: log, texts: map[string][]byte{}}
}

// Name returns the name of the source.
func (m *Source) Name() string { return m.config.Name }

// Status returns the state of the source.
func (m *Source) Status() source.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return source.Status{Synced: m.synced, LastContact: m.since, Err: m.err, Inputs: len(m.texts)}
}

// RemoveRetainedInputs does nothing. Its presence makes record.Recorder treat Source as a source
// that may have lost its objects: it serves the stored ones until clients write or delete them, or
// until a reload.
func (m *Source) RemoveRetainedInputs() {}

// Run serves the write API until ctx ends. While the address cannot be bound, it retries every
// second.
func (m *Source) Run(ctx context.Context) error {
	m.mu.Lock()
	m.sink(discovery.SourceUpdate{Source: m.Name(), Complete: true})
	m.synced, m.since = true, time.Now()
	m.mu.Unlock()
	listener, err := admission.Bind(ctx, m.config.Listen, m.bound)
	if err != nil {
		return nil //nolint:nilerr // ctx ended before the address could be bound
	}
	m.bound(nil)
	pool := admission.NewPool(limits)
	server := admission.NewServer(admission.LimitBody(http.TimeoutHandler(m.handler(), maxTime,
		"too slow\n")), m.log)
	return admission.Serve(ctx, server, admission.NewListener(listener, admission.Options{
		Admit: admission.AdmitTCP(pool, pool)}))
}

// bound records the result of an attempt to bind the address.
func (m *Source) bound(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && m.err == nil {
		m.log.Warn("cannot listen on write API address", "address", m.config.Listen, "error", err)
	}
	m.err = err
}

func (m *Source) handler() http.Handler {
	mux := http.NewServeMux()
	const object = " /objects/{kind}/{namespace}/{name}"
	mux.HandleFunc("GET"+object, m.get)
	mux.HandleFunc("PUT"+object, m.put)
	mux.HandleFunc("DELETE"+object, m.delete)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why := m.unauthorized(r); why != "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, why, http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// unauthorized returns why a request may not use the write API, "" if it may.
func (m *Source) unauthorized(r *http.Request) string {
	text, err := readfile.Read(m.config.TokenFile, pki.MaxTokenBytes)
	token := strings.TrimSpace(string(text))
	if err != nil || token == "" {
		m.log.Warn("cannot read token of write API", "file", m.config.TokenFile,
			"error", err)
		return "the server has no token: see its log"
	}
	sent, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || subtle.ConstantTimeCompare([]byte(strings.TrimSpace(sent)), []byte(token)) != 1 {
		return "send Authorization: Bearer with the content of token_file"
	}
	return ""
}

// path returns the path of the input for the object that a request identifies.
func (m *Source) path(r *http.Request) string {
	return fmt.Sprintf("%s:%s/%s/%s", m.Name(), r.PathValue("kind"), r.PathValue("namespace"),
		r.PathValue("name"))
}

func (m *Source) get(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	text, ok := m.texts[m.path(r)]
	m.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(text)
}

func (m *Source) delete(w http.ResponseWriter, r *http.Request) {
	path := m.path(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes -= len(m.texts[path])
	delete(m.texts, path)
	// Deliver the removal even of an unknown path: record.Recorder may serve a stored object of an
	// earlier run for it.
	m.deliver(store.SourceInput{Path: path})
	w.WriteHeader(http.StatusNoContent)
}

// deliver passes an input to the sink. Callers hold mu, so that inputs of one path are delivered in
// order.
func (m *Source) deliver(in store.SourceInput) {
	m.since = time.Now()
	m.sink(discovery.SourceUpdate{Source: m.Name(), Inputs: []store.SourceInput{in}})
}
