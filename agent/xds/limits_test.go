package xds

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// noSource is a Source without resources.
type noSource struct{}

func (noSource) Feed(*corev3.Node) (*resource.Feed, error) {
	return nil, errors.New("no resources")
}

// serveHost runs a server with the limits of a host on two Unix sockets until the test ends.
func serveHost(t *testing.T) (sockets [2]string) {
	t.Helper()
	server, err := NewServer(WithHostLimits(Options{Source: noSource{}}))
	if err != nil {
		t.Fatal(err)
	}
	folder, connections := parts.ShortDir(t), newConnections(nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, len(sockets))
	for i, name := range []string{"one.sock", "two.sock"} {
		sockets[i] = filepath.Join(folder, name)
		bound, err := Listen(ListenOptions{Path: sockets[i]})
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- server.Serve(ctx, connections.limit(bound)) }()
	}
	t.Cleanup(func() {
		cancel()
		for range sockets {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return sockets
}

// admitted opens a connection, and reports whether the server accepts it, which means that it sends
// its HTTP/2 settings.
func admitted(t *testing.T, socket string) (net.Conn, bool) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, _ := c.Read(make([]byte, 1))
	return c, n == 1
}

func TestXDS_ConnectionsHaveALimitForAllSockets(t *testing.T) {
	sockets := serveHost(t)
	var first net.Conn
	for i := range ownConnections() {
		c, ok := admitted(t, sockets[i%2])
		if !ok {
			t.Fatalf("connection %d was refused", i)
		}
		if first == nil {
			first = c
		}
	}
	if _, ok := admitted(t, sockets[0]); ok {
		t.Error("one more was admitted")
	}
	_ = first.Close()
	for deadline := time.Now().Add(30 * time.Second); ; {
		if _, ok := admitted(t, sockets[1]); ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("none was admitted in the place of one that was closed")
		}
	}
}

func TestXDS_StreamsAndMessagesHaveLimits(t *testing.T) {
	sockets := serveHost(t)
	client, err := grpc.NewClient("unix:"+sockets[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(client)
	long, err := ads.DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := long.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(make([]byte,
		hostMessageBytes))}); err != nil {
		t.Fatal(err)
	}
	if _, err := long.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message that is too long: %v", err)
	}
	ends := make(chan error, 4*hostStreams)
	for range cap(ends) {
		stream, err := ads.DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := stream.Recv()
			ends <- err
		}()
	}
	// An accepted stream remains open, because the server waits for its first request. So all
	// streams that end were refused.
	for refused := range cap(ends) - hostStreams {
		select {
		case err := <-ends:
			if status.Code(err) != codes.ResourceExhausted {
				t.Fatalf("stream %d: %v", refused, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("only %d were refused", refused)
		}
	}
}
