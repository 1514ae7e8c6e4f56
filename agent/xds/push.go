package xds

import (
	"cmp"
	"math/rand/v2"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// acknowledgeTime bounds the time for which listeners, routes and later clusters wait for the
// client's answer to clusters and endpoints. Envoy acknowledges clusters when all of them are warm;
// after that, routes can refer to them. Without a bound, a cluster that never becomes warm, for
// example because its secret is missing, would block the other types.
const acknowledgeTime = time.Second

// next returns the response to send now; nil if there is none. Clusters are sent first, then
// endpoints. Listeners and routes follow when clusters and endpoints are acknowledged. Removals are
// sent last, when no resource refers to the removed ones any more.
func (s *session) next(now time.Time) *response {
	if s.snapshot.Sequence == 0 {
		// before the first publication, a response would say that the resources do not exist
		return nil
	}
	// a response with clusters, endpoints or an extension was sent and is not answered yet
	awaited := false
	for _, w := range s.order {
		switch {
		case w.rank >= rank(resource.ListenerType) && awaited:
		case w.inflight != nil:
			awaited = awaited || w.rank < rank(resource.ListenerType) && w.awaited(now)
		default:
			if r := s.build(w, w.rank == 0); r != nil {
				return s.sending(w, r, now)
			}
		}
	}
	for _, w := range s.order {
		if w.awaited(now) {
			return nil
		}
	}
	for _, typeURL := range [...]string{resource.ListenerType, resource.RouteType,
		resource.ClusterType, resource.EndpointType} {
		w := s.watches[typeURL]
		if w == nil {
			continue
		}
		if w.inflight == nil {
			if r := s.build(w, true); r != nil {
				return s.sending(w, r, now)
			}
		}
		if s.awaitsListeners(w) {
			// Envoy uses its previous listeners until it answers, and they may refer to the removed
			// resources
			return nil
		}
	}
	return nil
}

// awaited reports whether other types must wait for the answer to the response that was sent last.
func (w *watch) awaited(now time.Time) bool {
	return w.inflight != nil && now.Before(w.awaitedUntil())
}

// awaitedUntil returns until when other types wait for the answer to the response that was sent
// last; zero: they do not wait.
func (w *watch) awaitedUntil() time.Time {
	switch {
	case w.inflight.restores:
		return w.answerUntil
	case w.rank > 0 || w.oneByOne():
		return w.inflight.sent.Add(acknowledgeTime)
	}
	return time.Time{}
}

// wake returns the earliest time at which next may return a response although no resource has
// changed; zero: never.
func (s *session) wake(now time.Time) (at time.Time) {
	for _, w := range s.order {
		if w.awaited(now) {
			at = earlier(at, w.awaitedUntil())
		}
		if w.inflight != nil {
			at = earlier(at, w.answerUntil)
		}
	}
	return at
}

// earlier returns the earlier of two times. A zero time means never.
func earlier(x, y time.Time) time.Time {
	if x.IsZero() || !y.IsZero() && y.Before(x) {
		return y
	}
	return x
}

// expire stops waiting for overdue answers, and returns the unanswered responses. Until such an
// answer arrives, the session assumes that the client has accepted their resources.
func (s *session) expire(now time.Time) (unanswered []*response) {
	for _, w := range s.order {
		if r := w.inflight; r != nil && !now.Before(w.answerUntil) {
			unanswered = append(unanswered, r)
			w.delay()
		}
	}
	return unanswered
}

// sending completes a response that is about to be sent, and records it.
func (s *session) sending(w *watch, r *response, now time.Time) *response {
	s.nonce++
	r.typeURL, r.version = w.typeURL, strconv.FormatUint(s.snapshot.Sequence, 10)
	// the random part proves that a client that answers has read the response (see stream.unread)
	r.nonce = strconv.FormatUint(s.nonce, 10) + "-" + strconv.FormatUint(rand.Uint64(), 36)
	r.sequence = s.snapshot.Sequence
	r.published, r.sent, r.trial = s.snapshot.Published, now, w.trial
	w.inflight, w.lastNonce, w.answer = r, r.nonce, false
	w.answerUntil = now.Add(s.patience)
	if w.typeURL == resource.ClusterType {
		w.answerUntil = now.Add(min(s.patience, acknowledgeTime))
	}
	w.versionSent, w.lastSent = r.version, now
	w.pushes++
	if w.typeURL == resource.ClusterType {
		s.resendEndpoints(r)
	}
	return r
}

// resendEndpoints marks the endpoints of all clusters in a response for sending. Envoy rebuilds a
// changed cluster, and waits for its endpoints without requesting them again.
func (s *session) resendEndpoints(r *response) {
	endpoints := s.watches[resource.EndpointType]
	if endpoints == nil || endpoints.blank {
		// the client receives endpoints from another server, or has not received any from this one
		// yet
		return
	}
	for _, cluster := range r.allChanges {
		if cluster.after == nil {
			continue
		}
		if name := endpoints.of(cluster.after); endpoints.wants(name) {
			current := s.get(endpoints, name)
			endpoints.note(name, current, current, true)
		}
	}
}

// of returns the name of a cluster's endpoints: service_name in its EDS configuration, or the
// cluster's own name.
func (w *watch) of(cluster *resource.Resource) string {
	if w.wants(cluster.Name) {
		// the common case, without decoding, because thousands of clusters may change together
		return cluster.Name
	}
	var decoded clusterv3.Cluster
	if err := proto.Unmarshal(cluster.EncodedMessage(), &decoded); err != nil {
		return cluster.Name
	}
	return cmp.Or(decoded.GetEdsClusterConfig().GetServiceName(), cluster.Name)
}

// build returns the next response of a type; nil if there is nothing to send. last reports whether
// all changes of other types were sent. While it is false, a removal is sent only if the client
// requested the resource and awaits a response about it, or if another resource replaces it.
func (s *session) build(w *watch, last bool) *response {
	switch {
	case w.oneByOne():
		s.startOneByOne(w)
	case w.blank:
		return s.buildFirst(w)
	case w.full:
		return s.buildFull(w, last)
	}
	if len(w.differs) == 0 && !w.answer && w.trial == nil {
		return nil // frequent: a change of one type makes the session check all types
	}
	set := s.snapshot.ByType(w.typeURL)
	r, mayRemove := &response{}, s.mayRemove(w, last)
	current := 0 // number of resources in the response that have their newest version
	for name, d := range s.due(w) {
		if w.trial != nil && !w.trial.has(name) {
			continue
		}
		if w.oneByOne() && len(r.resources)+len(r.removed) > 0 {
			break
		}
		now := set[name]
		target := w.target(name, d.held, now)
		restores := w.restores(name, d)
		if restores {
			target = cmp.Or(d.held, w.refused[name].instead)
		}
		switch {
		case same(target, d.held) && !d.forced:
			w.hold(name, d.held, now, false)
		// the publisher has neither set the resource nor reported it absent
		case target == nil && !restores && s.pending(w, name):
		case target == nil && (d.forced || mayRemove(name)):
			// State-of-the-world responses have no list of removed resources. There, a removal is
			// recorded only if the client awaits a response (forced).
			if s.delta || d.forced {
				r.removed = append(r.removed, name)
				r.note(name, d.held, nil)
				r.restores = restores
			}
			w.hold(name, nil, now, false)
		case target == nil: // removals are sent after all other changes
		case !target.HasContent():
			// the version is from an earlier stream and its content is unknown, so the client keeps
			// it
			w.hold(name, d.held, now, false)
		default:
			if target == now {
				current++
			}
			r.resources = append(r.resources, target)
			r.note(name, d.held, target)
			r.restores = restores
			w.hold(name, target, now, false)
		}
	}
	if len(w.differs) == 0 {
		w.differs = map[string]difference{} // frees the memory of a large change
	}
	if len(r.resources)+len(r.removed) == 0 && !w.answer {
		// the trial has no suspected resource left to send: all were removed or reverted
		if w.trial != nil {
			w.trial.pass(w)
			return s.build(w, last)
		}
		return nil
	}
	s.pack(w, r, current > 1 && current == len(r.resources) && current == len(set))
	return r
}

// pack sets the body of a response. If the response has all resources of a type (everything),
// streams share its body.
func (s *session) pack(w *watch, r *response, everything bool) {
	if everything {
		r.body = s.shared.all(s.snapshot, w.typeURL, s.delta)
		r.resources = r.body.resources
		return
	}
	r.body = newBody(r.resources, s.delta)
}

// buildFirst returns the first response of a type; nil if it is not known yet of any requested
// resource whether it exists.
func (s *session) buildFirst(w *watch) *response {
	if !w.wildcard && len(w.names.sorted) == 0 {
		return nil
	}
	set := s.snapshot.ByType(w.typeURL)
	r := &response{first: true}
	w.blank = false
	s.inheritAll(w)
	pending := 0
	for _, name := range w.names.sorted {
		switch now := set[name]; {
		case now == nil && s.pending(w, name):
			w.hold(name, nil, nil, true)
			pending++
		case now == nil:
			r.removed = append(r.removed, name)
		case !w.wildcard && w.refused[name] == nil:
			r.resources = append(r.resources, now)
		}
	}
	if !w.wildcard && pending == len(w.names.sorted) {
		return nil
	}
	if len(w.refused) == 0 {
		s.pack(w, r, w.wildcard || len(r.resources) > 1 && len(r.resources) == len(set))
		return r
	}
	for name, now := range set {
		if w.wildcard && w.refused[name] == nil {
			r.resources = append(r.resources, now)
		}
	}
	for name := range w.refused {
		target := w.target(name, nil, set[name])
		w.hold(name, target, set[name], false)
		if target != nil {
			r.resources = append(r.resources, target)
		} else if w.names.has(name) {
			r.removed = append(r.removed, name)
		}
	}
	s.pack(w, r, false)
	return r
}

// buildFull returns a response with all resources of a type, in which the accepted version replaces
// a refused one. It returns nil if nothing has changed.
func (s *session) buildFull(w *watch, last bool) *response {
	set := s.snapshot.ByType(w.typeURL)
	r, mayRemove := &response{}, s.mayRemove(w, last)
	changed := w.answer
	targets := make(map[string]*resource.Resource, len(w.differs))
	for name, d := range w.differs {
		target := w.target(name, d.held, set[name])
		switch {
		case w.trial != nil && !w.trial.has(name):
			target = d.held
		case target == nil && !d.forced && !mayRemove(name):
			target = d.held
		}
		changed = changed || d.forced || !same(target, d.held)
		targets[name] = target
	}
	if !changed {
		if w.trial != nil {
			w.trial.pass(w)
			return s.buildFull(w, last)
		}
		return nil
	}
	instead := 0 // number of resources in the response that do not have their newest version
	for name, target := range targets {
		d, now := w.differs[name], set[name]
		if target == nil && (d.held != nil || d.forced) {
			r.removed = append(r.removed, name)
		}
		r.note(name, d.held, target)
		w.hold(name, target, now, false)
		if target != now {
			instead++
			if target.HasContent() {
				r.resources = append(r.resources, target)
			}
		}
	}
	if instead == 0 && w.wildcard {
		s.pack(w, r, true)
		return r
	}
	for name, now := range set {
		if target, other := targets[name]; (!other || target == now) && w.wants(name) {
			r.resources = append(r.resources, now)
		}
	}
	s.pack(w, r, false)
	return r
}
