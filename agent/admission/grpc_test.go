package admission

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
)

// endsWith is a listener that accepts no connection and fails when its context ends.
type endsWith struct {
	net.Listener
	ctx      context.Context
	accepted chan<- struct{}
}

func (l endsWith) Accept() (net.Conn, error) {
	close(l.accepted)
	<-l.ctx.Done()
	return nil, net.ErrClosed
}

func TestServeGRPC_ListenerThatEndsWithTheContextIsNoError(t *testing.T) {
	for range 300 {
		bound, err := net.Listen("unix", "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		// Further functions that run at the end of ctx delay ServeGRPC's AfterFunc, so that the
		// listener often fails before the server is stopped.
		for range 500 {
			context.AfterFunc(ctx, func() {})
		}
		served, accepted := make(chan error, 1), make(chan struct{})
		go func() { served <- ServeGRPC(ctx, grpc.NewServer(), endsWith{bound, ctx, accepted}) }()
		<-accepted
		cancel()
		if err := <-served; err != nil {
			t.Fatal(err)
		}
	}
}
