package xds

import (
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/resource"
)

// inherit applies refusals of other clients to a resource of a new subscription: if all clients
// that answered the newest version refused it, this client first receives the last accepted
// version. If there is none, it receives the newest version of an extension nevertheless, because
// Envoy's listeners wait for a version.
func (s *session) inherit(w *watch, name string) {
	of := s.snapshot.Refusal(resource.Key{Type: w.typeURL, Name: name})
	if of != nil && of.InUse() == nil && w.oneByOne() {
		return
	}
	if of != nil && !of.OfferToNewClients && w.refused[name] == nil {
		w.refused[name] = &refused{resource: of.Resource, instead: of.InUse(), message: of.Reason,
			since: time.Now(), attempt: of.Retries, inherited: true}
	}
}

// inheritAll calls inherit for all refused resources to which the client subscribes.
func (s *session) inheritAll(w *watch) {
	for key := range s.snapshot.AllRefused() {
		if key.Type == w.typeURL && w.wants(key.Name) {
			s.inherit(w, key.Name)
		}
	}
}

// nack returns the refusal of the resource one in the form that the feed records. held is the
// version that the client uses instead; nil: none.
func (s *session) nack(w *watch, one, held *resource.Resource, message, reason string) resource.Nack {
	n := resource.Nack{Resource: one, VersionInUse: held, Reason: reason,
		BindFailed: w.typeURL == resource.ListenerType && BindFailureReason(message,
			one.Name) != ""}
	n.LocalCause = n.BindFailed || w.typeURL == resource.SecretType
	if held == nil && w.typeURL == resource.ListenerType {
		for _, name := range s.pendingRemovals(w) {
			if old := w.differs[name].held; mayReplace(one, old) {
				n.ReplacedListeners = append(n.ReplacedListeners, old)
			}
		}
		// listeners that the feed removed after the session's snapshot
		for name, now := range s.snapshot.ByType(w.typeURL) {
			if old := w.acknowledged(name, now); name != one.Name && old != nil && mayReplace(one, old) {
				n.ReplacedListeners = append(n.ReplacedListeners, old)
			}
		}
	}
	return n
}

// mayReplace reports whether a listener may replace a removed one: the first origin of one of them
// is an origin of the other, or the origins of one are unknown.
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

// uncertain returns refusals of several resources of which at least one was refused; the client may
// have accepted the others.
func (s *session) uncertain(w *watch, names []string, reason string) (nacks []resource.Nack) {
	for _, name := range names {
		if now := s.get(w, name); now != nil {
			nacks = append(nacks, resource.Nack{Resource: now, Reason: reason, LocalCause: true})
		}
	}
	return nacks
}

// BindFailureReason returns the reason why Envoy cannot bind a refused listener, or "" if it was
// refused for a different reason. Envoy's message has a line "NAME: cannot bind 'ADDRESS': REASON"
// for each listener that it cannot bind.
func BindFailureReason(message, name string) string {
	_, after, _ := strings.Cut(message, name+": cannot bind '")
	line, _, _ := strings.Cut(after, "\n")
	_, reason, _ := strings.Cut(line, "': ")
	return reason
}
