package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"

	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// listener serves xDS on one TCP address.
type listener struct {
	lifecycle.Readiness
	address string
	server  *xds.Server
	// nil: the listener does not use TLS
	identity *serverIdentity
}

func newListener(address string, server *xds.Server, identity *serverIdentity) *listener {
	return &listener{address: address, server: server, identity: identity}
}

// Name returns the name of the component.
func (l *listener) Name() string { return "xDS on " + l.address }

// Run serves xDS until ctx ends.
func (l *listener) Run(ctx context.Context) error {
	var listen net.ListenConfig
	socket, err := listen.Listen(ctx, "tcp", l.address)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", l.address, err)
	}
	l.MarkReady()
	options := []grpc.ServerOption{grpc.ConnectionTimeout(2 * handshakeTimeout)}
	if l.identity != nil {
		options = append(options, grpc.Creds(limitHandshakes(l.identity.credentials(),
			handshakesPerClient, handshakeTimeout)))
	}
	return l.server.Serve(ctx, xds.LimitConnections(socket), options...)
}

// runningSource runs a source as a component of the program. It is ready at once.
type runningSource struct {
	source.Source
	lifecycle.Readiness
}

// Run runs the source until ctx ends.
func (s *runningSource) Run(ctx context.Context) error {
	s.MarkReady()
	return s.Source.Run(ctx)
}
