package xds

import (
	"slices"

	"outrider.org/outrider/agent/resource"
)

// target is what the client should hold of a name of which it holds held, and the snapshot now: the latter, unless the client refused
// exactly that for good. One that holds nothing, as the Envoy of a new epoch, first gets what stands in for it, which others go on
// with that refused the newest: it serves as they do, whatever it makes of the newest afterwards.
func (s *session) target(w *watch, name string, held, now *resource.Resource) *resource.Resource {
	r := w.refused[name]
	if held == nil && now != nil {
		if in := s.feed.StandIn(w.key(name)); in != nil && !r.has(in) {
			return in
		}
	}
	if r.has(now) {
		return held
	}
	return now
}

// substitute puts what stands in for others in their place in a first response. The others are sent after it.
func (s *session) substitute(w *watch, r *response) {
	var mixed []*resource.Resource
	for _, in := range s.feed.StandIns() {
		now := s.get(w, in.Name)
		if in.Type != w.typeURL || same(in, now) {
			continue
		}
		i := slices.IndexFunc(r.resources, func(one *resource.Resource) bool { return one.Name == in.Name })
		if i < 0 {
			continue // it did not ask for that
		}
		if mixed == nil {
			mixed = slices.Clone(r.resources)
		}
		mixed[i] = in
		w.hold(in.Name, in, now, false)
	}
	if mixed != nil {
		r.resources = mixed
		s.pack(w, r, false)
	}
}

// has tells whether a resource is among what the client refused for good.
func (r *refused) has(one *resource.Resource) bool {
	return r != nil && !r.again && one != nil && (same(r.resource, one) || r.earlier == one.Version)
}

// alternative is the version of what the client refused for good before it refused one, if one of the two stands in for the
// other: neither is sent again then.
func (s *session) alternative(w *watch, one *resource.Resource) string {
	before, in := w.refused[one.Name], s.feed.StandIn(w.key(one.Name))
	if before == nil || before.again || in == nil || !same(in, one) && !same(in, before.resource) {
		return ""
	}
	return before.resource.Version
}

// forgive forgets that the client refused what a name stands for.
func (s *session) forgive(w *watch, name string) {
	if w.refused[name] != nil {
		delete(w.refused, name)
		s.feed.Forgive(w.key(name))
	}
}

// end takes back what counts only while the client is there.
func (s *session) end() {
	for _, w := range s.order {
		for name := range w.refused {
			s.forgive(w, name)
		}
	}
}
