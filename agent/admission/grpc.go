package admission

import (
	"context"
	"net"

	"google.golang.org/grpc"
)

// ServeGRPC serves until ctx ends (nil) or the listener fails. It closes the listener and ends all
// streams: those of xDS never end by themselves, so a graceful stop would wait forever.
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
	if ctx.Err() != nil { // the listener ended with ctx, before the function above could begin
		return nil //nolint:nilerr // no failure
	}
	return err
}
