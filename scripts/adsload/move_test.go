package adsload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

// When their server stops, clients with certificates continue at the other server. That server
// sends no resources that the clients already have, but it sends later changes.
func TestLoad_MovesWithVersions(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	root := pkitest.NewAuthority(t, "root", nil)
	roots := x509.NewCertPool()
	roots.AddCert(root.Certificate)
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	feed := resource.NewFeed()
	feed.Publish(resource.Change{Set: []*resource.Resource{
		resource.FromEncoded(ClusterType, "c", append(nested("c", 1), nested("e", 3, 2)...)),
		resource.FromEncoded(EndpointType, "e", nested("e", 1)),
		resource.FromEncoded(ListenerType, "l", nested("l", 1)),
	}})
	server, err := xds.NewServer(xds.Options{Source: source{feed}})
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	var stops []func()
	for range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets, listener.Addr().String())
		serving, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- server.Serve(serving, listener, grpc.Creds(credentials.NewTLS(&tls.Config{
				Certificates: []tls.Certificate{pair}, ClientCAs: roots,
				ClientAuth: tls.RequireAndVerifyClientCert})))
		}()
		stops = append(stops, func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	const clients = 10
	load, err := Start(ctx,
		Options{Targets: targets, Clients: clients, Delta: true, SameNodeID: true,
			TLS: func(int) *tls.Config {
				return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair},
					ServerName: "web.test"}
			}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load.WaitInitialResources(ctx); err != nil {
		t.Fatal(err)
	}
	before := load.Received()
	stops[0]()
	parts.Eventually(t, time.Minute, "half of the clients have moved",
		func() bool { return load.ReconnectCount() == clients/2 })
	for typeURL, now := range load.Received() {
		if now.Resources != before[typeURL].Resources {
			t.Errorf("%s: %d resources were sent again", typeURL,
				now.Resources-before[typeURL].Resources)
		}
	}
	mark := load.WatchContent(EndpointType, []byte("generation 2"))
	feed.Publish(resource.Change{Set: []*resource.Resource{resource.FromEncoded(EndpointType, "e",
		append(nested("e", 1), nested("generation 2", 2)...))}})
	if _, err := mark.Wait(ctx); err != nil {
		t.Error(err)
	}
	if err := load.Stop(); err != nil {
		t.Error(fmt.Errorf("stop: %w", err))
	}
	stops[1]()
}
