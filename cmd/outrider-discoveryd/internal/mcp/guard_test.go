package mcp

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/xds"
)

func TestGuard(t *testing.T) {
	server, err := node(Options{})
	if err != nil {
		t.Fatal(err)
	}
	guarded := RequireIdentity(func(_ *xds.Peer, node *corev3.Node) (*corev3.Node,
		error) {
		return node, nil
	})
	for _, test := range []struct {
		client xds.Peer
		node   *corev3.Node
		want   codes.Code
	}{
		{xds.Peer{Address: "10.0.0.1:4000"}, server, codes.PermissionDenied},
		{xds.Peer{Address: ""}, server, codes.PermissionDenied},
		{xds.Peer{Address: "10.0.0.1:4000", Token: "x"}, server, codes.PermissionDenied},
		{xds.Peer{Address: "10.0.0.1:4000", Identity: "spiffe://a/ns/b/sa/c"}, server, codes.OK},
		{xds.Peer{Address: "127.0.0.1:4000"}, server, codes.OK},
		{xds.Peer{Address: "[::ffff:127.0.0.1]:4000"}, server, codes.OK},
		{xds.Peer{Address: "10.0.0.1:4000"}, &corev3.Node{}, codes.OK},
	} {
		if _, err := guarded(&test.client, test.node); status.Code(err) != test.want {
			t.Errorf("%+v: %v", test.client, err)
		}
	}
	refusing := RequireIdentity(func(*xds.Peer, *corev3.Node) (*corev3.Node, error) {
		return nil, status.Error(codes.Unauthenticated, "who")
	})
	if _, err := refusing(&xds.Peer{}, server); status.Code(err) != codes.Unauthenticated {
		t.Errorf("%v", err)
	}
}
