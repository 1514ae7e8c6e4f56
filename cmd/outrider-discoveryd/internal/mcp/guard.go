package mcp

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/xds"
)

// AdmitFunc is a function that authenticates a client; see xds.Options.Admit.
type AdmitFunc func(client *xds.Peer, node *corev3.Node) (*corev3.Node, error)

// RequireIdentity returns an AdmitFunc that calls admit. It also refuses clients without an
// identity that request objects (see discovery.RequestsIstioObjects), except clients on the
// loopback interface.
func RequireIdentity(admit AdmitFunc) AdmitFunc {
	return func(client *xds.Peer, node *corev3.Node) (*corev3.Node, error) {
		admitted, err := admit(client, node)
		if err == nil && discovery.RequestsIstioObjects(admitted) && client.Identity == "" &&
			!isLoopback(client.Address) {
			return nil, status.Error(codes.PermissionDenied, "the objects of the configuration "+
				"(GENERATOR=api) are for clients with a certificate or token")
		}
		return admitted, err
	}
}

func isLoopback(address string) bool {
	from, err := netip.ParseAddrPort(address)
	return err == nil && from.Addr().Unmap().IsLoopback()
}
