package xds

import (
	"slices"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"

	"outrider.org/outrider/agent/resource"
)

// moving is a FleetSource with one proxy, to which a test can assign another feed.
type moving struct {
	mu    sync.Mutex
	feed  *resource.Feed
	moved func()
}

func (m *moving) Feed(*corev3.Node) (*resource.Feed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.feed, nil
}

func (m *moving) Subscribe(node *corev3.Node, _ string, moved func()) (
	func() (*resource.Feed, error), func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moved = moved
	return func() (*resource.Feed, error) { return m.Feed(node) }, func() {}
}

// move assigns another feed to the proxy.
func (m *moving) move(feed *resource.Feed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.feed = feed
	m.moved()
}

// If a proxy gets another feed, its stream receives the resources that differ, and, once more,
// those that it refused. The previous feed then has no watcher and no refusal of this stream, and
// its changes do not reach the stream.
func TestStream_MovesToAnotherFeed(t *testing.T) {
	publish := func(feed *resource.Feed, contents ...string) {
		var set []*resource.Resource
		for _, content := range contents {
			set = append(set, cluster(content))
		}
		feed.Publish(resource.Change{Set: set})
	}
	first, second := resource.NewFeed(), resource.NewFeed()
	publish(first, "same=1", "other=1", "gone=1", "bad=1")
	publish(second, "same=1", "other=2", "bad=1", "new=1")
	source, socket := &moving{feed: first}, socketPath(t)
	serve(t, socket, WithFleetLimits(Options{Source: source}))
	stream := deltaStream(t, dial(t, socket))
	send := func(request *discoveryv3.DeltaDiscoveryRequest) {
		t.Helper()
		request.TypeUrl = cds
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(removed []string, names ...string) *discoveryv3.DeltaDiscoveryResponse {
		t.Helper()
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var sent []string
		for _, r := range got.Resources {
			sent = append(sent, r.Name)
		}
		slices.Sort(sent)
		if !slices.Equal(sent, names) || !slices.Equal(got.RemovedResources, removed) {
			t.Fatalf("received %v and removals %v, want %v and %v", sent, got.RemovedResources,
				names, removed)
		}
		return got
	}
	accept := func(r *discoveryv3.DeltaDiscoveryResponse) {
		t.Helper()
		send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.Nonce})
	}
	refuse := func(r *discoveryv3.DeltaDiscoveryResponse) {
		t.Helper()
		send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.Nonce, ErrorDetail: &status.Status{
			Code: 13, Message: "Error adding/updating cluster(s) bad: no"}})
	}
	refused := func(feed *resource.Feed) bool {
		snapshot, _ := feed.Current()
		return snapshot.Refusal(resource.Key{Type: cds, Name: "bad"}) != nil
	}

	send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode})
	refuse(receive(nil, "bad", "gone", "other", "same"))
	accept(receive(nil, "gone", "other", "same"))
	eventually(t, "the refusal is known", func() bool { return refused(first) })
	source.move(second)
	refuse(receive(nil, "bad", "new", "other"))
	accept(receive(nil, "new", "other"))
	accept(receive([]string{"gone"}))
	eventually(t, "the refusal is known to the second feed", func() bool { return refused(second) })
	if first.IdleSince().IsZero() || !second.IdleSince().IsZero() {
		t.Error("the stream watches the feed that it left")
	}
	publish(first, "same=3")
	publish(second, "same=2", "bad=2")
	accept(receive(nil, "bad", "same"))
	eventually(t, "nothing is refused", func() bool { return !refused(second) })
	source.move(second) // the feed does not change, so nothing is sent
	publish(second, "same=4")
	accept(receive(nil, "same"))
}
