package xds

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/resource"
)

// session implements the xDS protocol of one stream without I/O: it receives requests and
// snapshots, and returns responses. Its methods do not block; they must not be called concurrently.
//
// At most one response of each type waits for its answer. Changes are merged until the answer
// arrives, so that it is clear to which response a refusal belongs. Types are sent in such an order
// that resources precede those that refer to them.
type session struct {
	delta    bool
	limits   limits
	patience time.Duration      // maximum wait for the answer to a response
	snapshot *resource.Snapshot // current snapshot, without the resources that visible removes
	feed     *resource.Feed     // feed of the snapshot, which may already have a newer one
	client   resource.Client
	// returns a snapshot without resources that the client may not receive (see visibleOf); nil: it
	// may receive all
	visible func(*resource.Snapshot) *resource.Snapshot
	epoch   func() int // returns the epoch number of the client; 0 if unknown
	// the client has answered a response with listeners
	joined   bool
	shared   *bodies
	sets     *nameSets
	report   reporter
	redactor func(message string) string // Options.Redact; nil: messages are not redacted
	only     string                      // the only type that is served; "": any type

	watches   map[string]*watch
	order     []*watch // values of watches, in the order of their ranks
	nonce     uint64
	nameBytes int // total length of the names to which the client subscribes

	// names of secrets to which the client has subscribed, and from which it has unsubscribed,
	// since the last call of takeDemand
	subscribed, unsubscribed []string
}

// reporter receives the events of a session. Its methods must not block.
type reporter interface {
	accepted(*response)
	refused(Refusal)
	recovered(typeURL string, names []string)
	notOffered(typeURL string)
}

// pending reports whether it is not known yet if a resource exists. The client must then wait for a
// response about the resource.
func (s *session) pending(w *watch, name string) bool {
	return s.snapshot.ExistenceUnknown(resource.Key{Type: w.typeURL, Name: name})
}

// get returns the resource with a name in the current snapshot; nil if there is none.
func (s *session) get(w *watch, name string) *resource.Resource {
	return s.snapshot.ByType(w.typeURL)[name]
}

// handle processes a request of the client. The error is a gRPC status that ends the stream.
func (s *session) handle(r *request) error {
	if err := s.limits.check(r); err != nil {
		return err
	}
	if s.only != "" && r.typeURL != s.only {
		return status.Errorf(codes.InvalidArgument, "this service serves %s only, not %s", s.only,
			r.typeURL)
	}
	w, known := s.watches[r.typeURL]
	if !known {
		if len(s.watches) >= s.limits.types {
			return status.Errorf(codes.ResourceExhausted, "more than %d types on one stream",
				s.limits.types)
		}
		w = newWatch(r.typeURL, s.delta)
		s.watches[r.typeURL] = w
		at, _ := slices.BinarySearchFunc(s.order, w.rank+1,
			func(w *watch, rank int) int { return cmp.Compare(w.rank, rank) })
		s.order = slices.Insert(s.order, at, w)
		if r.typeURL == resource.VirtualHostType {
			s.report.notOffered(r.typeURL)
		}
	}
	// the client has not answered the newest response yet; its answer will contain the names again
	older := !s.delta && known && r.nonce != "" && r.nonce != w.lastNonce
	if answered := w.answered(r.nonce); answered != nil {
		s.handleAnswer(w, answered, r.refusal)
		// the refused response is too old and was forgotten
	} else if r.refusal != nil && !older {
		s.report.refused(Refusal{Type: r.typeURL, Nonce: r.nonce,
			Error: s.redact(r.refusal.GetMessage())})
	}
	switch {
	case older:
		return nil
	case s.delta:
		return s.subscribe(w, r, !known)
	}
	return s.setNames(w, r)
}

// subscribe applies the changes of the subscription in an incremental request of the client.
func (s *session) subscribe(w *watch, r *request, first bool) error {
	versions := r.versions
	if !first {
		// after the first request of a type, the session itself records what the client has
		versions = nil
	}
	if len(versions) > 0 {
		w.blank = false
		s.join(w)
	}
	if first && len(r.subscribe) == 0 && startsAsWildcard(w.typeURL) ||
		slices.Contains(r.subscribe, wildcard) {
		s.startWildcard(w, versions)
	}
	added, err := s.addNames(w, r.subscribe)
	if err != nil {
		return err
	}
	set := s.snapshot.ByType(w.typeURL)
	for _, name := range r.subscribe {
		if name == wildcard || w.blank {
			continue
		}
		now := set[name]
		held, forced := s.priorVersion(w, name, now, versions), true
		if held != nil {
			forced = w.oneByOne() && w.refused[name] != nil && held.HasContent()
		} else if _, isNew := slices.BinarySearch(added, name); w.wildcard || !isNew {
			held = now
		}
		w.note(name, held, now, forced)
	}
	if err := s.resume(w, versions); err != nil {
		return err
	}
	s.removeNames(w, r.unsubscribe)
	for _, name := range r.unsubscribe {
		if name == wildcard {
			s.endWildcard(w)
			continue
		}
		s.drop(w, name)
		// the client has dropped the resource, but is still subscribed to it by the wildcard
		if w.wildcard {
			w.note(name, nil, s.get(w, name), true)
		}
	}
	return nil
}

// priorVersion returns the version of a resource that a client has from an earlier stream; nil if
// the client has none. If the server no longer has that version, the result has no content. now is
// the version in the snapshot.
func (s *session) priorVersion(
	w *watch, name string, now *resource.Resource, versions map[string]string,
) *resource.Resource {
	version, ok := versions[name]
	if !ok {
		return nil
	}
	if now != nil && now.Version == version {
		return now
	}
	of := s.snapshot.Refusal(resource.Key{Type: w.typeURL, Name: name})
	if of != nil && of.LastAccepted != nil && of.LastAccepted.Version == version {
		return of.LastAccepted
	}
	return &resource.Resource{Type: w.typeURL, Name: strings.Clone(name),
		Version: strings.Clone(version)}
}

// resume compares the resources that the client has from an earlier stream with the snapshot. It
// notes those that do not exist any more, and notifies the feed of those whose newest version the
// client has accepted.
func (s *session) resume(w *watch, versions map[string]string) error {
	set := s.snapshot.ByType(w.typeURL)
	var held []*resource.Resource
	for name, version := range versions {
		switch now := set[name]; {
		case now != nil && now.Version == version:
			held = append(held, now)
		case now == nil && w.wants(name):
			if s.nameBytes += len(name); s.nameBytes > s.limits.bytes {
				return s.tooManyNames()
			}
			w.note(strings.Clone(name), s.priorVersion(w, name, nil, versions), nil, false)
		}
	}
	if len(held) > 0 {
		s.feed.Accept(s.client, s.snapshot.Sequence, held)
	}
	return nil
}

// setNames replaces the names of the subscription by those in a state-of-the-world request.
func (s *session) setNames(w *watch, r *request) error {
	first := w.lastNonce == "" || r.nonce == ""
	all := len(r.names) == 0 && !w.named && startsAsWildcard(w.typeURL) ||
		slices.Contains(r.names, wildcard)
	w.named = w.named || len(r.names) > 0
	if first && len(r.names) == 0 && !all {
		return nil // the request does not subscribe to any resource
	}
	switch {
	case all && (!w.wildcard || r.nonce == ""):
		s.startWildcard(w, nil)
	case !all && w.wildcard:
		s.endWildcard(w)
	}
	names := slices.DeleteFunc(r.names, func(name string) bool { return name == wildcard })
	slices.Sort(names)
	names = slices.Compact(names)
	if !first && slices.Equal(names, w.names.sorted) {
		return nil
	}
	added, err := s.addNames(w, names)
	if err != nil {
		return err
	}
	if first {
		added = names
	}
	for _, name := range added {
		w.note(name, nil, s.get(w, name), true)
	}
	gone := w.names.without(names).sorted
	s.removeNames(w, gone)
	for _, name := range gone {
		s.drop(w, name)
		w.answer = w.answer || w.full && !w.blank
	}
	return nil
}

func (s *session) startWildcard(w *watch, versions map[string]string) {
	set := s.snapshot.ByType(w.typeURL)
	if w.blank {
		set = nil
	}
	for name, now := range set {
		held := s.priorVersion(w, name, now, versions)
		if held == nil && w.wants(name) && !w.wildcard {
			held = now
		}
		w.note(name, held, now, false)
	}
	w.wildcard = true
	if !w.blank {
		s.inheritAll(w)
	}
	// Listeners get a response even if it is empty: the ACK shows that the client uses those from
	// the earlier stream.
	w.answer = w.answer || len(versions) == 0 || w.typeURL == resource.ListenerType
}

func (s *session) endWildcard(w *watch) {
	w.wildcard, w.answer = false, false
	drop := func(name string) {
		if !w.wants(name) {
			s.drop(w, name)
		}
	}
	for name := range w.differs {
		drop(name)
	}
	for r := range w.unanswered {
		for name := range r.changes {
			drop(name)
		}
	}
}

// drop deletes the state of a name from which the client unsubscribed. If the client refuses an
// earlier response later, the version before it is not restored.
func (s *session) drop(w *watch, name string) {
	delete(w.differs, name)
	for r := range w.unanswered {
		if r.changes[name].before != nil {
			r.rebase(name, nil)
		}
	}
	delete(w.refused, name)
}

// addNames subscribes to names, and returns those that are new, sorted. It stores the equal strings
// of the snapshot, so that the memory of the request can be freed.
func (s *session) addNames(w *watch, names []string) (added []string, err error) {
	set := s.snapshot.ByType(w.typeURL)
	for _, name := range names {
		if name == wildcard || w.names.has(name) {
			continue
		}
		if r := set[name]; r != nil {
			name = r.Name
		}
		added = append(added, name)
	}
	if len(added) == 0 {
		return nil, nil
	}
	slices.Sort(added)
	added = slices.Compact(added)
	for _, name := range added {
		s.nameBytes += len(name)
	}
	if s.nameBytes > s.limits.bytes {
		return nil, s.tooManyNames()
	}
	w.names = s.sets.share(w.names.with(added))
	if w.typeURL == resource.SecretType {
		s.subscribed = append(s.subscribed, added...)
	}
	for _, name := range added {
		if !w.blank {
			s.inherit(w, name)
		}
	}
	return added, nil
}

// removeNames removes names from the subscription of a type.
func (s *session) removeNames(w *watch, names []string) {
	var gone []string
	for _, name := range names {
		if w.names.has(name) {
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return
	}
	slices.Sort(gone)
	gone = slices.Compact(gone)
	for _, name := range gone {
		s.nameBytes -= len(name)
	}
	w.names = s.sets.share(w.names.without(gone))
	if w.typeURL == resource.SecretType {
		s.unsubscribed = append(s.unsubscribed, gone...)
	}
}

// takeDemand returns the names of secrets to which the client has subscribed, and from which it has
// unsubscribed, since the last call. A name is in both lists if the client did both.
func (s *session) takeDemand() (subscribed, unsubscribed []string) {
	subscribed, unsubscribed = s.subscribed, s.unsubscribed
	s.subscribed, s.unsubscribed = nil, nil
	return subscribed, unsubscribed
}

func (s *session) tooManyNames() error {
	return status.Errorf(codes.ResourceExhausted,
		"the names subscribed to on one stream take more than %d bytes", s.limits.bytes)
}
