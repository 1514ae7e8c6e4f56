package xds

import (
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/resource"
)

// inherit records a refusal by other clients for a new subscription: if all clients that answered
// the newest version of a resource refused it, this client starts with the last accepted version.
// Without one, it gets the newest version of an extension nevertheless: Envoy has its listeners wait
// for a version, and would wait for ever.
func (s *session) inherit(w *watch, name string) {
	of := s.snapshot.Refused(resource.Key{Type: w.typeURL, Name: name})
	if of != nil && of.InUse() == nil && w.oneByOne() {
		return
	}
	if of != nil && !of.Offered && w.refused[name] == nil {
		w.refused[name] = &refused{resource: of.Resource, instead: of.InUse(), message: of.Reason,
			since: time.Now(), attempt: of.Attempt, inherited: true}
	}
}

// inheritAll calls inherit for all names that the client subscribes to.
func (s *session) inheritAll(w *watch) {
	for key := range s.snapshot.AllRefused() {
		if key.Type == w.typeURL && w.wants(key.Name) {
			s.inherit(w, key.Name)
		}
	}
}

// nack returns the record of a refusal for the feed. held is what the client has instead of the
// refused resource.
func (s *session) nack(w *watch, one, held *resource.Resource, message, reason string) resource.Nack {
	n := resource.Nack{Resource: one, HeldVersion: held, Reason: reason,
		Unbound: w.typeURL == resource.ListenerType && BindError(message, one.Name) != ""}
	n.Local = n.Unbound || w.typeURL == resource.SecretType
	if held == nil && w.typeURL == resource.ListenerType {
		for _, name := range s.pendingRemovals(w) {
			if old := w.differs[name].held; mayReplace(one, old) {
				n.Replaces = append(n.Replaces, old)
			}
		}
		// the feed may have removed a listener after the session's snapshot
		for name, now := range s.snapshot.ByType(w.typeURL) {
			if old := w.acknowledged(name, now); name != one.Name && old != nil && mayReplace(one, old) {
				n.Replaces = append(n.Replaces, old)
			}
		}
	}
	return n
}

// mayReplace reports whether a listener may replace a removed one: the main origin of one of them
// is an origin of the other, or an origin is not known.
func mayReplace(one, removed *resource.Resource) bool {
	if len(one.Origins) == 0 || len(removed.Origins) == 0 {
		return true
	}
	has := func(r *resource.Resource, main resource.Origin) bool {
		return slices.ContainsFunc(r.Origins, func(o resource.Origin) bool {
			return o.Object() == main.Object()
		})
	}
	return has(one, removed.Origins[0]) || has(removed, one.Origins[0])
}

// uncertain returns refusals of resources of which at least one was refused; the client may have
// accepted the rest.
func (s *session) uncertain(w *watch, names []string, reason string) (nacks []resource.Nack) {
	for _, name := range names {
		if now := s.get(w, name); now != nil {
			nacks = append(nacks, resource.Nack{Resource: now, Reason: reason, Local: true})
		}
	}
	return nacks
}

// BindError returns the reason why Envoy cannot bind a refused listener, or "" if the listener was
// refused for a different reason. For each listener, Envoy's message has a line
// "NAME: cannot bind 'ADDRESS': REASON".
func BindError(message, name string) string {
	_, after, _ := strings.Cut(message, name+": cannot bind '")
	line, _, _ := strings.Cut(after, "\n")
	_, reason, _ := strings.Cut(line, "': ")
	return reason
}
