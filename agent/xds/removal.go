package xds

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// Removals of listeners wait until Envoy has accepted the listeners that were sent before, because
// Envoy may refuse the replacement of a removed listener, for example if its port is in use. But a
// listener is removed in the same response in which another one with its address is added, because
// Envoy accepts no two listeners with one address.

// mayRemove returns a function that reports whether the next response of a type may remove the
// resource with a name. last reports whether all other changes were sent.
func (s *session) mayRemove(w *watch, last bool) func(name string) bool {
	switch {
	case w.oneByOne(): // Envoy drops an extension with the last listener that names it
		return func(string) bool { return false }
	case w.typeURL != resource.ListenerType:
		return func(string) bool { return last }
	}
	pending := s.pendingRemovals(w)
	var added []*corev3.Address
	for name, d := range w.differs {
		target := w.target(name, d.held, s.get(w, name))
		if len(pending) > 0 && !same(target, d.held) && (w.trial == nil || w.trial.has(name)) {
			added = append(added, addresses(target)...)
		}
	}
	replaced := slices.DeleteFunc(pending, func(name string) bool {
		return !slices.ContainsFunc(addresses(w.differs[name].held), func(old *corev3.Address) bool {
			return slices.ContainsFunc(added,
				func(a *corev3.Address) bool { return proto.Equal(a, old) })
		})
	})
	return func(name string) bool {
		return slices.Contains(replaced, name) || last && w.oldest() == nil
	}
}

// awaitsListeners reports whether removals of listeners must wait, because Envoy has not answered
// all responses with listeners.
func (s *session) awaitsListeners(w *watch) bool {
	return w.typeURL == resource.ListenerType && w.oldest() != nil && len(s.pendingRemovals(w)) > 0
}

// pendingRemovals returns the names of resources that the client has, although they no longer
// exist.
func (s *session) pendingRemovals(w *watch) (names []string) {
	for name, d := range w.differs {
		if d.held != nil && s.get(w, name) == nil {
			names = append(names, name)
		}
	}
	return names
}

// addresses returns the addresses of a listener; nil if the listener's content is unknown.
func addresses(r *resource.Resource) []*corev3.Address {
	var l listenerv3.Listener
	if !r.HasContent() || proto.Unmarshal(r.EncodedMessage(), &l) != nil {
		return nil
	}
	all := []*corev3.Address{l.GetAddress()}
	for _, more := range l.GetAdditionalAddresses() {
		all = append(all, more.GetAddress())
	}
	return all
}
