package xds

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/resource"
)

// TestDrain checks that a server that drains ends its streams at different times and refuses new
// ones.
func TestDrain(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	server, address := serveFleet(t, Options{Source: oneFeed{feed}}, LimitConnections)
	connection := connectTo(t, address)
	const clients = 20
	ended := make(chan time.Time, clients)
	for range clients {
		stream := join(t, connection, "one")
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		go func() {
			if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
				t.Error(err)
			}
			ended <- time.Now()
		}()
	}
	drained := make(chan struct{})
	go func() {
		server.Drain(context.Background(), 2*time.Second)
		close(drained)
	}()
	first := <-ended
	if _, err := join(t, connection, "another").Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a new client: %v", err)
	}
	last := first
	for range clients - 1 {
		last = <-ended
	}
	<-drained
	if spread := last.Sub(first); spread < 200*time.Millisecond {
		t.Errorf("all streams ended within %v", spread)
	}
	if n := server.Stats().Streams; n != 0 {
		t.Errorf("%d streams", n)
	}
}

// TestMaxConnectionAge checks that a connection and its streams end at the maximum age.
func TestMaxConnectionAge(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	_, address := serveFleet(t, Options{Source: oneFeed{feed},
		MaxConnectionAge: 100 * time.Millisecond}, LimitConnections)
	connection := connectTo(t, address)
	stream := join(t, connection, "one")
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v", err)
	}
	eventually(t, "the client connects again", func() bool {
		_, err := join(t, connection, "one").Recv()
		return err == nil
	})
}
