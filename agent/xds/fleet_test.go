package xds

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// serveFleet runs a server with the limits of a fleet on a TCP address until the test ends. The
// identity of a client is the cluster in its node; clients with the cluster "stranger" are refused.
func serveFleet(t *testing.T, options Options,
	limit func(net.Listener) net.Listener) (*Server, string) {
	t.Helper()
	options.Admit = func(client *Peer, node *corev3.Node) (*corev3.Node, error) {
		if node.GetCluster() == "stranger" {
			return nil, status.Error(codes.Unauthenticated, "who are you")
		}
		client.Identity = node.GetCluster()
		return node, nil
	}
	server, err := NewServer(WithFleetLimits(options))
	if err != nil {
		t.Fatal(err)
	}
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, limit(bound)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return server, bound.Addr().String()
}

func connectTo(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// join opens a stream as a client with the given identity, and subscribes to clusters.
func join(t *testing.T, connection *grpc.ClientConn,
	identity string) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	stream := deltaStream(t, connection)
	// if Send fails, Recv returns the error
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds,
		Node: &corev3.Node{Id: "n", Cluster: identity}})
	return stream
}

// TestFleet_BadClientsBesideAGoodOne checks that a client receives every change although other
// clients do not read, send garbage, or open 1,000 streams.
func TestFleet_BadClientsBesideAGoodOne(t *testing.T) {
	feed := resource.NewFeed()
	publish := func(i int) {
		feed.Publish(resource.Change{Set: []*resource.Resource{resource.FromEncoded(cds, "c",
			append(bytes.Repeat([]byte("x"), 100<<10), fmt.Sprint(i)...))}})
	}
	publish(0)
	server, address := serveFleet(t, Options{Source: oneFeed{feed}, SendTimeout: 5 * time.Second,
		AckTimeout: time.Second}, LimitConnections)

	slow := join(t, connectTo(t, address), "slow")
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() {
		for i := range 100 {
			c, err := net.Dial("tcp", address)
			if err != nil {
				continue
			}
			_, _ = c.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
				bytes.Repeat([]byte{byte(i)}, 1000)...))
			_ = c.Close()
		}
	})
	many := make([]*grpc.ClientConn, 20)
	for i := range many {
		many[i] = connectTo(t, address)
	}
	others.Go(func() {
		for i := range 1000 {
			_ = deltaStreamOn(t, many[i%len(many)])
		}
	})

	good := join(t, connectTo(t, address), "good")
	longest := time.Duration(0)
	for i := range 20 {
		begun := time.Now()
		answer, err := good.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r := answer.Resources; len(r) != 1 {
			t.Fatalf("%d resources", len(r))
		}
		longest = max(longest, time.Since(begun))
		if err := good.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds,
			ResponseNonce: answer.Nonce}); err != nil {
			t.Fatal(err)
		}
		publish(i + 1)
	}
	t.Logf("the slowest change took %v", longest)
	if longest > patience {
		t.Errorf("a change took %v", longest)
	}
	changes := 20
	eventually(t, "the slow client is disconnected", func() bool {
		changes++ // the server sends a response only after a change
		publish(changes)
		return !slices.ContainsFunc(server.Status(t.Context()), func(s StreamStatus) bool {
			return s.Peer.Identity == "slow"
		})
	})
	// The slow client first reads the responses that were sent before its stream ended, and then
	// the error.
	for err := error(nil); status.Code(err) != codes.DeadlineExceeded; {
		if _, err = slow.Recv(); err != nil && status.Code(err) != codes.DeadlineExceeded {
			t.Fatal(err)
		}
	}
}

// deltaStreamOn opens a stream, sends a request, and returns the error with which the stream ends,
// if any.
func deltaStreamOn(t *testing.T, connection *grpc.ClientConn) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		DeltaAggregatedResources(t.Context())
	if err != nil {
		return err
	}
	return stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds,
		Node: &corev3.Node{Id: "n", Cluster: "many"}})
}

// TestFleet_StreamsOfOneIdentity checks that an identity cannot open more streams than its limit,
// and that the error of another stream names the limit.
func TestFleet_StreamsOfOneIdentity(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	server, address := serveFleet(t, Options{Source: oneFeed{feed}, MaxStreamsPerIdentity: 2},
		LimitConnections)
	connection := connectTo(t, address)
	open := []grpc.ClientStream{}
	for range 2 {
		stream := join(t, connection, "one")
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		open = append(open, stream)
	}
	if _, err := join(t, connection, "one").Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	if _, err := join(t, connection, "another").Recv(); err != nil {
		t.Error(err)
	}
	_ = open[0].CloseSend()
	eventually(t, "the end of a stream makes room", func() bool {
		_, err := join(t, connection, "one").Recv()
		return err == nil
	})
	if server.Stats().RefusedStreams == 0 {
		t.Error("none is counted")
	}
}

// TestFleet_ConnectionsOfStrangersGiveWay checks that, when the limit of connections is reached,
// those on which no client was admitted are closed.
func TestFleet_ConnectionsOfStrangersGiveWay(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	pool := admission.NewPool(admission.Limits{Total: 3, PerKey: 3})
	_, address := serveFleet(t, Options{Source: oneFeed{feed}},
		func(inner net.Listener) net.Listener { return limitTCP(inner, pool, pool) })
	known := join(t, connectTo(t, address), "known")
	if _, err := known.Recv(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := join(t, connectTo(t, address), "stranger").Recv(); status.Code(err) !=
			codes.Unauthenticated {
			t.Errorf("a stranger: %v", err)
		}
	}
	if _, err := join(t, connectTo(t, address), "another").Recv(); err != nil {
		t.Errorf("a further client: %v", err)
	}
	feed.Publish(resource.Change{Set: []*resource.Resource{resource.FromEncoded(cds, "c", nil)}})
	if err := known.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds}); err != nil {
		t.Fatal(err)
	}
	if evicted := pool.Stats().Evicted; evicted == 0 {
		t.Error("no connection gave way")
	}
}

// TestFleet_RateOfOneAddress checks that a single address may open streams at no more than half of
// the total rate, and that the error of a refused stream says so.
func TestFleet_RateOfOneAddress(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	_, address := serveFleet(t, Options{Source: oneFeed{feed}, ConnectsPerSecond: 2}, LimitConnections)
	connection := connectTo(t, address)
	results := make(chan error)
	for range 10 {
		go func() {
			stream := join(t, connection, "one")
			_, err := stream.Recv()
			results <- err
		}()
	}
	refused := 0
	for range 10 {
		if err := <-results; status.Code(err) == codes.ResourceExhausted {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused == 0 {
		t.Error("none is refused")
	}
}

// TestFleet_StrangersDoNotUseUpTheRate checks that clients without an identity use up only the
// rates of their addresses, not the total rate, so that a client with an identity is served.
func TestFleet_StrangersDoNotUseUpTheRate(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	_, address := serveFleet(t, Options{Source: oneFeed{feed}, ConnectsPerSecond: 4}, LimitConnections)
	var strangers sync.WaitGroup
	for _, user := range []int{parts.NobodyUID, 1, 2, 3} {
		connection, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(_ context.Context, to string) (c net.Conn, err error) {
				parts.RunAs(t, user, func() { c, err = net.Dial("tcp", to) })
				return c, err
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connection.Close() }()
		for range 5 {
			strangers.Go(func() {
				_, err := join(t, connection, "stranger").Recv()
				if code := status.Code(err); code != codes.Unauthenticated &&
					code != codes.ResourceExhausted {
					t.Errorf("a stranger: %v", err)
				}
			})
		}
	}
	strangers.Wait()
	if _, err := join(t, connectTo(t, address), "one").Recv(); err != nil {
		t.Error(err)
	}
}

// busyObserver records how many responses are built simultaneously.
type busyObserver struct {
	noopObserver
	now, most, all atomic.Int64
}

func (b *busyObserver) OnPush(Stream, Push) {
	now := b.now.Add(1)
	for most := b.most.Load(); now > most && !b.most.CompareAndSwap(most, now); {
		most = b.most.Load()
	}
	for range 100 {
		runtime.Gosched()
	}
	b.all.Add(1)
	b.now.Add(-1)
}

// TestServer_Concurrency publishes a change for many streams. The number of responses that are
// built simultaneously is Options.MaxConcurrentResponseBuilds, or GOMAXPROCS if that is not set.
func TestServer_Concurrency(t *testing.T) {
	for set, want := range map[int]int64{2: 2, 0: int64(runtime.GOMAXPROCS(0))} {
		t.Run(fmt.Sprint(set), func(t *testing.T) { testConcurrency(t, set, want) })
	}
}

func testConcurrency(t *testing.T, set int, want int64) {
	const streams = 50
	feed, seen := resource.NewFeed(), &busyObserver{}
	_, address := serveFleet(t, Options{Source: oneFeed{feed}, Observer: seen,
		MaxConcurrentResponseBuilds: set,
		ConnectsPerSecond:           10_000}, LimitConnections)
	connection := connectTo(t, address)
	for range streams {
		join(t, connection, "one")
	}
	eventually(t, "all are served", func() bool {
		feed.Publish(resource.Change{Set: []*resource.Resource{cluster("a=1")}})
		return seen.all.Load() >= streams
	})
	if most := seen.most.Load(); most > want {
		t.Errorf("%d responses were made at the same time", most)
	}
}

// TestFleet_UnansweredBytes checks that the responses that a slow client has not answered occupy a
// bounded number of bytes.
func TestFleet_UnansweredBytes(t *testing.T) {
	feed := resource.NewFeed()
	publish := func(i int) {
		feed.Publish(resource.Change{Set: []*resource.Resource{resource.FromEncoded(cds, "c",
			append(bytes.Repeat([]byte("x"), 1<<10), fmt.Sprint(i)...))}})
	}
	publish(0)
	_, address := serveFleet(t, Options{Source: oneFeed{feed}, MaxUnansweredBytes: 3 << 10,
		AckTimeout: time.Millisecond}, LimitConnections)
	stream := join(t, connectTo(t, address), "one")
	for i := range 10 {
		_, err := stream.Recv()
		if status.Code(err) == codes.ResourceExhausted && i > 1 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		publish(i + 1)
	}
	t.Error("the client has answered nothing and is connected")
}
