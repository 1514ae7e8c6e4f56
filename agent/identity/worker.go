package identity

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"time"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/identity/pki"
)

// worker is a goroutine that obtains a secret.
type worker struct{ stop context.CancelFunc }

// definition is what a worker was started for.
type definition struct {
	files  Files
	folder string // of credentials, for the secret of one
	spire  bool
	issuer Issuer
	ratio  float64
	jitter float64
}

// The following methods expect mu to be held.

// start starts the worker of a secret, unless it runs or something else provides the secret.
func (m *Manager) start(name string) {
	e := m.entries[name]
	if m.running == nil || e.worker != nil {
		return
	}
	if (name == Default || name == RootCA) && !e.configured && e.current != nil {
		return // the provider was turned off, and an Envoy that drains has the secret
	}
	e.err, e.failing = nil, time.Time{}
	var from source
	from, e.err = m.origin(name, e)
	delete(m.waiting, name)
	if e.err == nil && !e.configured && len(m.entries)-len(m.waiting) > maxRequested {
		e.err, m.waiting[name] = errTooMany, true
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
	w := &worker{stop}
	e.worker, e.started = w, m.options.Now()
	time.AfterFunc(settle, m.recheck) // neither a hanging read nor expiry is an event
	report := func(version *material, err error) {
		m.report(ctx, w, name, version, m.explain(err))
	}
	if d.spire {
		go m.observe(ctx, name, report)
		return
	}
	if d.issuer == nil {
		go m.readFiles(ctx, from, report)
		return
	}
	var last *Issued
	if v := e.current; v != nil && v.pair != nil && v.issuer == d.issuer {
		last = &Issued{Pair: v.pair, Roots: v.roots, Obtained: v.obtained, Source: v.source}
	}
	go m.renew(ctx, m.settings, last, report)
}

// admit starts secrets that wait for a place of maxRequested while there are places.
func (m *Manager) admit() {
	for name := range m.waiting {
		if len(m.entries)-len(m.waiting) >= maxRequested {
			return
		}
		m.start(name)
	}
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

// supersede makes room for a worker with new settings. The one before continues until then.
func (e *entry) supersede() {
	if e.former == nil {
		e.former = e.worker
	} else {
		e.worker.end()
	}
	e.worker, e.err, e.failing = nil, nil, time.Time{}
}

func (w *worker) end() {
	if w != nil {
		w.stop()
	}
}

// forget drops a secret that is neither configured nor subscribed to, and reports whether it did.
func (m *Manager) forget(name string) bool {
	e := m.entries[name]
	if e.configured || e.subscribers > 0 {
		return false
	}
	e.worker.end()
	e.former.end()
	delete(m.entries, name)
	delete(m.waiting, name)
	m.forgetCounters(name)
	return true
}

func (m *Manager) forgetCounters(name string) {
	delete(m.stats.Renewals, name)
	maps.DeleteFunc(m.stats.Failures, func(f Failure, _ uint64) bool { return f.Resource == name })
}

// report accepts what a worker found. It takes mu.
func (m *Manager) report(
	ctx context.Context, from *worker, name string, version *material, err error,
) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return // replaced or forgotten meanwhile
	}
	e := m.entries[name]
	if from == e.worker {
		e.err = err
	}
	switch {
	case err == nil && from == e.worker:
		e.former.end()
		e.former, e.failing = nil, time.Time{}
		m.accept(e, version)
	case err == nil:
		m.accept(e, version)
	case from == e.worker:
		m.stats.Failures[Failure{Resource: name, Reason: reason(err)}]++
		if e.failing.IsZero() {
			e.failing = m.options.Now()
			if e.current == nil && errors.Is(err, fs.ErrPermission) {
				e.failing = e.failing.Add(-settle) // waiting does not help
			}
		}
	}
	m.judge()
	if err == nil {
		m.changed()
	}
}

// accept makes a version the current one. An authority sends the roots with the certificate.
func (m *Manager) accept(e *entry, version *material) {
	e.current = version
	roots := m.entries[RootCA]
	if version.issuer != nil && roots != nil && roots.worker == nil {
		roots.former.end()
		roots.former = nil
		roots.current = &material{
			roots: version.roots, source: version.source, obtained: version.obtained,
			issuer: version.issuer,
		}
	}
}

// changed has the stores written.
func (m *Manager) changed() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}
