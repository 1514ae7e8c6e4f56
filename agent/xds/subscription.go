package xds

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/resource"
)

// FleetSource is a Source that may give a connected proxy another feed. It needs options of
// ForFleet.
type FleetSource interface {
	Source
	// Subscribe returns a function for the feed of a proxy, as Feed does, until end is called.
	// identity is that of its client. moved is called when feed may return a different feed than
	// before; it does not block.
	Subscribe(node *corev3.Node, identity string, moved func()) (
		feed func() (*resource.Feed, error), end func())
}

// subscribe attaches the stream to the feed of its proxy, until endSubscription.
func (st *stream) subscribe() error {
	source := st.server.options.Source
	st.source, st.end = func() (*resource.Feed, error) { return source.Feed(st.Node) }, func() {}
	if moving, ok := source.(FleetSource); ok && st.server.options.move != nil {
		moved := make(chan struct{}, 1)
		st.moved = moved
		st.source, st.end = moving.Subscribe(st.Node, st.Peer.Identity, func() {
			select {
			case moved <- struct{}{}:
			default: // a signal is pending
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

// endSubscription ends subscribe, also after an error of it.
func (st *stream) endSubscription() {
	if st.feed != nil {
		st.detach()
	}
	if st.end != nil {
		st.end()
	}
}

func (st *stream) attach(feed *resource.Feed) {
	st.feed, st.unwatch, st.shared = feed, feed.Watch(), st.server.share(feed)
}

func (st *stream) detach() {
	st.feed.RemoveClient(st.client())
	st.server.unshare(st.feed)
	st.unwatch()
}

// client identifies the stream in its feed.
func (st *stream) client() resource.Client {
	return resource.Client{Proxy: st.Node.GetId(), Stream: st.ID}
}

// move continues with the feed that the proxy has now, and returns the channel of its changes.
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

// move continues with another feed. What is equal there is not sent again. What the client refused
// is, once, so that the feed knows.
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
			r.sequence = 0 // it was of the other feed
		}
	}
}

// acceptEqual records that the client has accepted what the snapshot has, except for differences.
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
