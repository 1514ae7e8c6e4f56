package xds

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/resource"
)

func TestMaxStreams(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	socket := socketPath(t)
	server, _ := serve(t, socket, Options{Source: oneFeed{feed}, MaxStreams: 1})
	connection := dial(t, socket)
	first := deltaStream(t, connection)
	if err := first.Send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode,
		TypeUrl: cds}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := deltaStream(t, connection).Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the second stream: %v", err)
	}
	if stats := server.Stats(); stats.RefusedStreams != 1 || stats.StreamsTotal != 1 {
		t.Errorf("stats: %+v", stats)
	}
	if !feed.IdleSince().IsZero() {
		t.Error("nobody follows the feed of an open stream")
	}
	if err := connection.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody follows the feed of a stream that ended",
		func() bool { return !feed.IdleSince().IsZero() })
}

func TestStream_SlowClientIsDisconnected(t *testing.T) {
	feed, seen, socket := resource.NewFeed(), &recorder{}, socketPath(t)
	server, _ := serve(t, socket, Options{Source: oneFeed{feed}, Observer: seen,
		SendTimeout: 5 * time.Second})
	// SendTimeout is 5 s, because the thread of a client that reads may pause for two seconds.
	large := func(i int) resource.Change {
		return resource.Change{Set: []*resource.Resource{cluster("a=" +
			strings.Repeat(fmt.Sprint(i%10), 1<<20))}}
	}
	feed.Publish(large(0))
	// The slow client subscribes and never reads. Its flow control windows are small, so that
	// sending to it blocks soon.
	slow := deltaStream(t, dial(t, socket, grpc.WithInitialWindowSize(1<<16),
		grpc.WithInitialConnWindowSize(1<<16)))
	if err := slow.Send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: cds}); err != nil {
		t.Fatal(err)
	}
	// the response to this request waits behind the large one
	if err := slow.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "other"}); err != nil {
		t.Fatal(err)
	}
	quick := deltaStream(t, dial(t, socket))
	if err := quick.Send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode,
		TypeUrl: cds}); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		got, err := quick.Recv()
		if err != nil || len(got.Resources) != 1 ||
			got.Resources[0].Resource.Value[0] != byte('0'+i) {
			t.Fatalf("change %d: %v", i, err)
		}
		if err := quick.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds,
			ResponseNonce: got.Nonce}); err != nil {
			t.Fatal(err)
		}
		feed.Publish(large(i + 1))
	}
	eventually(t, "the slow one is disconnected",
		func() bool { return server.Stats().StuckClients == 1 })
	for err := error(nil); err == nil; {
		if _, err = slow.Recv(); err != nil && status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("error %v", err)
		}
	}
}

func TestStreams_LeaveNothingBehind(t *testing.T) {
	const connections, each = 20, 50
	feed, socket := resource.NewFeed(), socketPath(t)
	var content []*resource.Resource
	for i := range 100 {
		content = append(content, cluster(fmt.Sprintf("c%d=1", i)))
	}
	feed.Publish(resource.Change{Set: content})
	server, _ := serve(t, socket, Options{Source: oneFeed{feed}})
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var streams []discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	var open []*grpc.ClientConn
	for range connections {
		connection := dial(t, socket)
		open = append(open, connection)
		for range each {
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
				DeltaAggregatedResources(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode,
				TypeUrl: cds}); err != nil {
				t.Fatal(err)
			}
			streams = append(streams, stream)
		}
	}
	receive := func(want int) {
		for i, stream := range streams {
			got, err := stream.Recv()
			if err != nil || len(got.Resources) != want {
				t.Fatalf("stream %d: %d resources, %v", i, len(got.GetResources()), err)
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds,
				ResponseNonce: got.Nonce}); err != nil {
				t.Fatal(err)
			}
		}
	}
	receive(100)
	eventually(t, "all at rest", func() bool {
		for _, s := range server.Status(t.Context()) {
			if s.Types[0].Pending != 0 {
				return false
			}
		}
		return true
	})
	feed.Publish(resource.Change{Set: []*resource.Resource{cluster("c7=2")}})
	receive(1)
	if n := server.Stats().Streams; n != connections*each {
		t.Errorf("%d streams", n)
	}
	cancel()
	for _, connection := range open {
		_ = connection.Close()
	}
	eventually(t, "every stream is gone", func() bool {
		return server.Stats().Streams == 0 &&
			runtime.NumGoroutine() <= before
	})
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.hubs) != 0 || len(server.streams) != 0 {
		t.Errorf("%d hubs, %d streams left", len(server.hubs), len(server.streams))
	}
}

func TestAdmissionSpreadsConnects(t *testing.T) {
	a := connectRate{perSecond: 2}
	for range 2 { // streams up to the rate of one second may begin immediately
		if err := a.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var refused bool
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for range 10 {
		refused = refused || status.Code(a.wait(ctx)) == codes.ResourceExhausted
	}
	if !refused {
		t.Error("ten more began")
	}
}

// TestStreams_NodeIsBounded checks that a request with a node that is too large is refused.
func TestStreams_NodeIsBounded(t *testing.T) {
	socket := socketPath(t)
	_, _ = serve(t, socket, Options{Source: oneFeed{resource.NewFeed()}})
	stream := deltaStream(t, dial(t, socket))
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType,
		Node: &corev3.Node{Id: strings.Repeat("x", maxNodeBytes)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}
