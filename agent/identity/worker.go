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

// Callers of the following methods hold mu.

// start starts the worker of a secret. It does nothing if a worker runs, or if the secret is the
// roots that an authority sends with the certificate.
func (m *Manager) start(name string) {
	e := m.entries[name]
	if state := e.state(); m.running == nil || state != idle && state != superseded {
		return
	}
	if (name == DefaultSecret || name == RootCASecret) && !e.configured && e.current != nil {
		return // a draining Envoy still has the secret of a provider that is no longer configured
	}
	from, err := m.sourceOf(name, e)
	delete(m.waiting, name)
	if err == nil && !e.configured && len(m.entries)-len(m.waiting) > maxRequested {
		err, m.waiting[name] = errTooMany, true
	}
	if e.failure = (failure{}); err != nil {
		e.fail(err, m.options.Now(), true)
		return
	}
	d := e.definition
	if d == (definition{}) {
		return // the authority sends the roots with the certificate
	}
	ctx, stop := context.WithCancel(m.running)
	w := &worker{stop, m.options.Now()}
	e.start(w)
	time.AfterFunc(failureGrace, m.recheck) // detects a read that hangs, which causes no event
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
	var last *IssuedCertificate
	if v := e.current; v != nil && v.pair != nil && v.issuer == d.issuer {
		last = &IssuedCertificate{Pair: v.pair, Roots: v.roots, Obtained: v.obtained,
			Source: v.source}
	}
	go m.renew(ctx, m.settings, last, report)
}

// startWaiting starts the workers of secrets that were refused because of maxRequested, as far as
// the limit now permits.
func (m *Manager) startWaiting() {
	for name := range m.waiting {
		if len(m.entries)-len(m.waiting) >= maxRequested {
			return
		}
		m.start(name)
	}
}

// sourceOf returns the files that the worker of a secret is to read. If the secret's name
// determines them, it also sets the definition of the entry.
func (m *Manager) sourceOf(name string, e *entry) (from source, err error) {
	switch {
	case credential.IsFileCredential(name) && m.settings.CredentialsDir != "":
		found, err := credential.LocateFiles(m.settings.CredentialsDir, name)
		if err != nil {
			return source{}, err
		}
		from = source{usage: pki.UsageEither, credential: &found, files: SecretFiles{
			Cert: found.Cert, Key: found.Key, Root: found.AuthoritiesPath(),
		}}
		e.definition = definition{files: from.files, folder: m.settings.CredentialsDir}
		return from, nil
	case name != DefaultSecret && name != RootCASecret:
		e.definition.files, err = parseName(name)
		return source{files: e.definition.files, usage: pki.UsageEither,
			denied: m.options.EnvoyCannotReadReason}, err
	case !e.configured:
		return source{}, errNoProvider
	case e.definition == (definition{}) && m.settings.Issuer == nil:
		return source{}, errNoRoots
	}
	return source{files: e.definition.files, usage: pki.UsageBoth}, nil
}

// remove drops a secret that is neither configured nor subscribed to, and reports whether it did.
func (m *Manager) remove(name string) bool {
	e := m.entries[name]
	if e.configured || e.subscribers > 0 {
		return false
	}
	e.end()
	delete(m.entries, name)
	delete(m.waiting, name)
	m.removeCounters(name)
	return true
}

func (m *Manager) removeCounters(name string) {
	delete(m.stats.Renewals, name)
	maps.DeleteFunc(m.stats.Failures,
		func(f RenewalFailure, _ uint64) bool { return f.Resource == name })
}

// report processes the result of a worker. Unlike the other methods it locks mu itself.
func (m *Manager) report(
	ctx context.Context, from *worker, name string, version *material, err error,
) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return // the worker was stopped meanwhile
	}
	e := m.entries[name]
	if err != nil && from == e.worker {
		m.stats.Failures[RenewalFailure{Resource: name, Reason: reason(err)}]++
		e.fail(err, m.options.Now(), e.current == nil && errors.Is(err, fs.ErrPermission))
	}
	if err == nil && from == e.worker {
		e.succeed()
	}
	if err == nil {
		m.setCurrent(e, version)
	}
	m.update()
	if err == nil {
		m.storeSoon()
	}
}

// setCurrent sets the current version of an entry. If an authority sent roots with the certificate,
// it sets them as the version of ROOTCA.
func (m *Manager) setCurrent(e *entry, version *material) {
	e.current = version
	if roots := m.entries[RootCASecret]; version.issuer != nil && roots != nil {
		roots.attach(&material{
			roots: version.roots, source: version.source, obtained: version.obtained,
			issuer: version.issuer,
		})
	}
}

// storeSoon makes the goroutine of store write the files.
func (m *Manager) storeSoon() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}
