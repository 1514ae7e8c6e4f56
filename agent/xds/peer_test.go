package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
)

// TestPeer_OfTCPConnections checks that Options.Admit receives the address and the token of a TCP
// client, and that the token is not stored with the stream.
func TestPeer_OfTCPConnections(t *testing.T) {
	authority := pkitest.NewAuthority(t, "root", nil)
	pool := x509.NewCertPool()
	pool.AddCert(authority.Certificate)
	issue := func(name string) tls.Certificate {
		chain, key := authority.Issue(t, pkitest.LeafTemplate(name, time.Hour))
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	peers := make(chan Peer, 1)
	observer := &recorder{}
	server, err := NewServer(Options{Source: oneFeed{feed}, Observer: observer,
		Admit: func(client *Peer, node *corev3.Node) (*corev3.Node, error) {
			peers <- *client
			client.Identity = "someone"
			return node, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(ctx, bound, grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{issue("server")},
			ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: pool})))
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for _, test := range []struct {
		name    string
		own     []tls.Certificate
		headers []string
		id      string
		token   string
	}{
		{name: "neither"},
		{name: "certificate", own: []tls.Certificate{issue("web")},
			id: "spiffe://cluster.local/ns/default/sa/web"},
		{name: "token", headers: []string{"authorization", "Bearer a.b.c"}, token: "a.b.c"},
		{name: "no bearer", headers: []string{"authorization", "Basic YTpi"}},
		{name: "empty bearer", headers: []string{"authorization", "Bearer "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			connection, err := grpc.NewClient(bound.Addr().String(), grpc.WithTransportCredentials(
				credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "server.test",
					Certificates: test.own})))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = connection.Close() }()
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
				DeltaAggregatedResources(metadata.AppendToOutgoingContext(t.Context(),
					test.headers...))
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode,
				TypeUrl: cds}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			client, id := <-peers, ""
			if client.Certificate != nil {
				id = client.Certificate.URIs[0].String()
			}
			if !client.TLS || client.Token != test.token || id != test.id || client.Address == "" {
				t.Errorf("%v %q %q %q", client.TLS, client.Address, client.Token, id)
			}
		})
	}
	observer.with(func(r *recorder) {
		for _, stream := range r.connected {
			if stream.Peer.Token != "" || stream.Peer.Identity != "someone" {
				t.Errorf("a stream retains %+v", stream.Peer)
			}
		}
	})
}

// TestPeer_MetadataIsBounded checks that a stream whose metadata exceeds the limit is refused
// before Options.Admit is called.
func TestPeer_MetadataIsBounded(t *testing.T) {
	_, address := serveFleet(t, Options{Source: oneFeed{resource.NewFeed()},
		Admit: func(*Peer, *corev3.Node) (*corev3.Node, error) {
			t.Error("the client was looked at")
			return nil, errors.New("refused")
		}}, LimitConnections)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connectTo(t, address)).
		DeltaAggregatedResources(metadata.AppendToOutgoingContext(t.Context(), "authorization",
			strings.Repeat("x", maxHeaderBytes)))
	if err == nil {
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "a"}})
		_, err = stream.Recv()
	}
	if err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream begins: %v", err)
	}
}
