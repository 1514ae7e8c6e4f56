package relay

import (
	"maps"
	"time"

	"outrider.org/outrider/agent/backoff"
	xdsresource "outrider.org/outrider/agent/resource"
)

// withoutModule is the version of an extension that denies all requests because its module is
// missing. It is neither cached nor stored as accepted, so upstream servers send the extension
// again on the next stream.
const withoutModule = "without-module"

// missing has the names of extensions that deny all requests because their modules are missing.
// When the timer fires, the session requests them again.
type missing struct {
	names map[string]bool
	timer *time.Timer
	pause backoff.Backoff
}

func newMissing(first time.Duration) missing {
	m := missing{names: map[string]bool{}, timer: time.NewTimer(0),
		pause: backoff.Backoff{Min: first, Max: lastRefetch, Jitter: jitter}}
	m.timer.Stop()
	return m
}

// received drops the extensions that are contained in a response which Envoy has received.
func (m *missing) received(r *response) {
	if r.typeURL != xdsresource.ExtensionType || len(m.names) == 0 {
		return
	}
	for _, one := range r.resources {
		delete(m.names, one.name)
	}
	if len(m.names) == 0 {
		m.pause.Reset()
	}
}

// forgetMissing drops the extensions to which Envoy does not subscribe any more.
func (s *session) forgetMissing(w *watch) {
	if w.typeURL != xdsresource.ExtensionType || len(s.missing.names) == 0 {
		return
	}
	maps.DeleteFunc(s.missing.names, func(name string, _ bool) bool { return !w.names[name] })
	s.acceptRefused(w)
}

// acceptRefused ends the report of refused resources of a type, unless modules are missing.
func (s *session) acceptRefused(w *watch) {
	if w.typeURL != xdsresource.ExtensionType || len(s.missing.names) == 0 {
		s.server.refusals.RemoveAccepted(s.id, w.typeURL, nil)
	}
}

// sendRest sends Envoy the resources of a refused response, except extensions whose modules are
// missing. If Envoy has an earlier version of such an extension, that version stays in use.
// Otherwise, unless the extension fails open, sendRest sends one that denies all requests: without
// it, Envoy would not apply the listener that names the extension, and the previous listener would
// serve.
func (s *session) sendRest(w *watch, r *response, failed map[string][]byte) error {
	rest := *r
	rest.version, rest.resources = w.version, nil
	again := false
	for _, one := range r.resources {
		if denying, missing := failed[one.name]; missing {
			if denying == nil || w.has(one.name) {
				continue
			}
			one.body, one.version = denying, withoutModule
			s.missing.names[one.name], again = true, true
		}
		rest.resources = append(rest.resources, one)
	}
	if again {
		s.missing.timer.Reset(s.missing.pause.Next())
	}
	if len(rest.resources)+len(rest.removed) == 0 {
		return nil
	}
	return s.sendOwn(w, &rest)
}

// fetchAgain reconnects if extensions deny all requests because their modules are missing. The
// upstream server then sends the extensions again.
func (s *session) fetchAgain() {
	if s.opened && len(s.missing.names) > 0 {
		s.reconnect()
	}
}
