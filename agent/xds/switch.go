package xds

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"outrider.org/outrider/agent/accept"
)

// ServiceSwitch serves each connection with one of two services: Relay if it is selected, otherwise
// Embedded. Open connections remain with the service that accepted them.
type ServiceSwitch struct {
	Embedded, Relay Service
	Logger          *slog.Logger
	relay           atomic.Bool
}

// UseRelay selects the service for new connections: Relay if use is true, otherwise Embedded.
func (s *ServiceSwitch) UseRelay(use bool) { s.relay.Store(use) }

// Serve implements Service.
func (s *ServiceSwitch) Serve(
	ctx context.Context, bound net.Listener, options ...grpc.ServerOption,
) error {
	group, ctx := errgroup.WithContext(ctx)
	context.AfterFunc(ctx, func() { _ = bound.Close() })
	newBranch := func() *branch { return &branch{bound, ctx.Done(), make(chan net.Conn)} }
	embedded, relay := newBranch(), newBranch()
	group.Go(func() error { return s.Embedded.Serve(ctx, embedded, options...) })
	group.Go(func() error { return s.Relay.Serve(ctx, relay, options...) })
	group.Go(func() error {
		for {
			connection, err := accept.NextConn(bound.Accept, func(err error) {
				s.Logger.Error("cannot accept connection on xDS socket", "error", err)
			})
			if err != nil {
				if ctx.Err() != nil {
					return nil //nolint:nilerr // closed at the end
				}
				return err
			}
			to := embedded
			if s.relay.Load() {
				to = relay
			}
			select {
			case to.connections <- connection:
			case <-ctx.Done():
				_ = connection.Close()
			}
		}
	})
	return group.Wait()
}

// branch is the listener from which one of the two services accepts connections. Closing it also
// closes the listener of the ServiceSwitch.
type branch struct {
	net.Listener
	done        <-chan struct{}
	connections chan net.Conn
}

// Accept implements net.Listener.
func (b *branch) Accept() (net.Conn, error) {
	select {
	case connection := <-b.connections:
		return connection, nil
	case <-b.done:
		return nil, net.ErrClosed
	}
}
