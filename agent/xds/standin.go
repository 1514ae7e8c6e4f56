package xds

import "outrider.org/outrider/agent/resource"

// target is what the client should hold of a name of which it holds held, and the snapshot now: the latter, unless the client refused
// exactly that for good. One that holds nothing, as the Envoy of a new epoch, first gets what stands in for it, which others go on
// with that refused the newest: it serves as they do, whatever it makes of the newest afterwards.
func (s *session) target(w *watch, name string, held, now *resource.Resource) *resource.Resource {
	r := w.refused[name]
	if held == nil {
		if in := s.feed.StandIn(now); in != nil && !r.has(in) {
			return in
		}
	}
	if r.has(now) {
		return held
	}
	return now
}

// standIns are what stands in for resources that the client wants, by name; nil if nothing does.
func (s *session) standIns(w *watch) map[string]*resource.Resource {
	var all map[string]*resource.Resource
	for _, in := range s.feed.StandIns() {
		now := s.get(w, in.Name)
		if in.Type != w.typeURL || now == nil || now.Version != in.Refused || !w.wants(in.Name) {
			continue
		}
		if all == nil {
			all = map[string]*resource.Resource{}
		}
		all[in.Name] = in.Resource
	}
	return all
}

// has tells whether a resource is among what the client refused for good.
func (r *refused) has(one *resource.Resource) bool {
	return r != nil && !r.again && one != nil && (same(r.resource, one) || r.earlier == one.Version)
}

// alternative is the version of what the client refused for good before it refused one, if one of the two stands in for the
// other: neither is sent again then.
func (s *session) alternative(w *watch, one *resource.Resource) string {
	before := w.refused[one.Name]
	if before == nil || before.again || !same(one, s.feed.StandIn(before.resource)) && !same(before.resource, s.feed.StandIn(one)) {
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
