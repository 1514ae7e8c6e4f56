package xds

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/resource"
)

// FleetSource is a Source that may assign another feed to a connected proxy. It is used only if the
// options are from WithFleetLimits.
type FleetSource interface {
	Source
	// Subscribe returns two functions: feed returns the current feed of a proxy, as Source.Feed
	// does, and end ends the subscription. identity is the identity of the client. moved is called
	// when feed may return another feed than before; it does not block.
	Subscribe(node *corev3.Node, identity string, moved func()) (
		feed func() (*resource.Feed, error), end func())
}

// subscribe attaches the stream to the feed of its proxy. The caller must call endSubscription
// later.
func (st *stream) subscribe() error {
	source := st.server.options.Source
	st.source, st.end = func() (*resource.Feed, error) { return source.Feed(st.Node) }, func() {}
	if moving, ok := source.(FleetSource); ok && st.server.options.move != nil {
		moved := make(chan struct{}, 1)
		st.moved = moved
		st.source, st.end = moving.Subscribe(st.Node, st.Peer.Identity, func() {
			select {
			case moved <- struct{}{}:
			default: // a signal is pending already
			}
		})
	}
	feed, err := st.source()
	if err != nil {
		return withStatus(err)
	}
	st.attach(feed)
	return nil
}

// endSubscription detaches the stream from its feed. It must be called even if subscribe has
// failed.
func (st *stream) endSubscription() {
	if st.feed != nil {
		st.detach()
	}
	if st.end != nil {
		st.end()
	}
}

func (st *stream) attach(feed *resource.Feed) {
	st.feed, st.unwatch, st.shared = feed, feed.AddWatcher(), st.server.share(feed)
}

func (st *stream) detach() {
	st.feed.RemoveClient(st.client())
	st.server.unshare(st.feed)
	st.unwatch()
}

// client returns the identifier of the stream for its feed.
func (st *stream) client() resource.Client {
	return resource.Client{Proxy: st.Node.GetId(), Stream: st.ID}
}

// move continues the stream with the feed that the proxy has now, and returns a channel that is
// closed when this feed has a newer snapshot.
func (st *stream) move(newer <-chan struct{}) (<-chan struct{}, error) {
	feed, err := st.source()
	if err != nil {
		return nil, withStatus(err)
	}
	if feed == st.feed {
		return newer, nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.detach()
	st.attach(feed)
	snapshot, newer := st.snapshot()
	st.session.move(feed, st.shared, snapshot)
	return newer, nil
}

// move continues the session with another feed. Resources that are equal in both feeds are not sent
// again. Resources that the client refused are sent once more, so that the new feed learns of the
// refusal.
func (s *session) move(feed *resource.Feed, shared *bodies, to *resource.Snapshot) {
	from := s.snapshot
	s.feed, s.shared, s.snapshot = feed, shared, to
	if s.joined {
		feed.AddClient(s.client, s.epoch())
	}
	for _, w := range s.order {
		if w.blank {
			continue
		}
		s.compare(w, from)
		s.inheritAll(w)
		s.acceptEqual(w)
		for r := range w.unanswered {
			r.sequence = 0 // the number was that of a snapshot of the previous feed
		}
	}
}

// acceptEqual notifies the new feed that the client has accepted its resources, except those that
// differ, that are refused, or whose response is unanswered.
func (s *session) acceptEqual(w *watch) {
	pending := map[string]bool{}
	for r := range w.unanswered {
		for name := range r.allChanges {
			pending[name] = true
		}
	}
	var held []*resource.Resource
	for name, now := range s.snapshot.ByType(w.typeURL) {
		if _, differs := w.differs[name]; !differs && !pending[name] && w.wants(name) &&
			w.refused[name] == nil {
			held = append(held, now)
		}
	}
	s.feed.Accept(s.client, s.snapshot.Sequence, held)
}
