package admission

import (
	"context"
	"net"

	"google.golang.org/grpc"
)

// ServeGRPC serves until ctx ends, then returns nil, or until the listener fails. It closes the
// listener and cuts all streams: xDS streams never end by themselves, so a graceful stop would wait
// forever.
func ServeGRPC(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		server.Stop()
	})
	err := server.Serve(listener)
	if !stop() {
		<-stopped
		return nil
	}
	server.Stop()
	// If ctx has ended, its end closed the listener, and Serve returned before AfterFunc called
	// Stop.
	if ctx.Err() != nil {
		return nil //nolint:nilerr // no failure
	}
	return err
}
