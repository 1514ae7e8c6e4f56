package xds

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// WaitForRateLimit blocks until a client may open a stream, or make a call of a service of
// Options.RegisterServices. For a client that is connected through LimitConnections, it is called
// twice: before authentication only the rate of the client's address is limited, later also the
// rate of all clients. The error is a gRPC status.
func (s *Server) WaitForRateLimit(ctx context.Context, client Peer,
	authenticated bool) (err error) {
	limited := client.connection != nil
	switch {
	case limited && !authenticated:
		err = s.rates.of(client).wait(ctx)
	case limited != authenticated: // clients of other listeners wait once only
	case s.reserved(client):
		err = s.rate.wait(ctx)
	default:
		err = s.other.wait(ctx)
	}
	if err != nil {
		s.counters.refusedStreams.Add(1)
	}
	return err
}

// reserved reports whether a client is one of those for which streams are reserved
// (Options.HasReservedStreams).
func (s *Server) reserved(client Peer) bool {
	return s.options.HasReservedStreams == nil || s.options.HasReservedStreams(client)
}

// admit authenticates a stream's client. It sets the client's identity and the node whose resources
// the stream serves.
func (s *Server) admit(st *stream, client *Peer, node *corev3.Node) error {
	if s.options.Admit != nil {
		admitted, err := s.options.Admit(client, node)
		if err != nil {
			return err
		}
		node = admitted
	}
	if err := s.own(st, client.Identity); err != nil {
		return err
	}
	if client.connection != nil && !client.connection.SetBusy() {
		return status.Error(codes.Unavailable, "this connection was closed for others")
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.Node, st.Peer = node, client.withoutToken()
	return nil
}

// withStatus converts an error to a gRPC status, unless it is one already.
func withStatus(err error) error {
	if _, ok := status.FromError(err); !ok {
		err = status.Error(codes.FailedPrecondition, err.Error())
	}
	return err
}

// own counts a stream against the limit of its client's identity until leave is called. The error
// is a gRPC status.
func (s *Server) own(st *stream, identity string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if identity == "" {
		return nil
	}
	if s.owned[identity] >= s.options.MaxStreamsPerIdentity {
		s.counters.refusedStreams.Add(1)
		return status.Errorf(codes.ResourceExhausted, "%d streams of %s are open, no more are allowed",
			s.owned[identity], identity)
	}
	s.owned[identity]++
	st.owner = identity
	return nil
}
