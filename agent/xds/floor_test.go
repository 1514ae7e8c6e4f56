package xds

import (
	"net"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"outrider.org/outrider/agent/resource"
)

// floor is a server that does as little as possible: it sends each changed resource to each client,
// and ignores acknowledgements.
type floor struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	feed *resource.Feed
}

// DeltaAggregatedResources responds to the first request for each type, and then sends changes.
func (f floor) DeltaAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	requested, ended := make(chan string), make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			if r.ResponseNonce == "" {
				requested <- r.TypeUrl
			}
		}
	}()
	send := func(typeURL string, resources []*resource.Resource) error {
		r := response{typeURL: typeURL, nonce: "1", version: "1", body: newBody(resources, true)}
		return stream.SendMsg(r.frame(true, ""))
	}
	snapshot, newer := f.feed.Current()
	for {
		var err error
		select {
		case err = <-ended:
			return err
		case typeURL := <-requested:
			var all []*resource.Resource
			for _, one := range snapshot.ByType(typeURL) {
				all = append(all, one)
			}
			err = send(typeURL, all)
		case <-newer:
			keys, _ := f.feed.ChangedSince(snapshot.Sequence)
			snapshot, newer = f.feed.Current()
			for _, key := range keys {
				err = send(key.Type, []*resource.Resource{snapshot.Get(key)})
			}
		}
		if err != nil {
			return err
		}
	}
}

// BenchmarkFloor measures the lower bound for BenchmarkChange/1000x1000/delta: the cost of gRPC
// alone.
func BenchmarkFloor(b *testing.B) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{Set: fleet(b, 1000)})
	options, err := NewServer(Options{Source: oneFeed{feed}})
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(options.ServerOptions()...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, floor{feed: feed})
	socket := socketPath(b)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	load := startLoad(b, socket, 1000, true)
	measureChanges(b, feed, load)
	load.end()
}
