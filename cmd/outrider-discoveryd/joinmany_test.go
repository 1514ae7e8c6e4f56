package main

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/join"
)

// TestJoin_Many has many hosts join at the same time, as agents do. Each host requests a
// certificate with a join token, opens an xDS stream with the certificate, and receives its
// configuration. First each host has its own identity, then all have the same one. With
// OUTRIDER_TEST_FULL=1 there are 1,000 hosts, which must be done within 30 s.
func TestJoin_Many(t *testing.T) {
	number, within := 50, 5*time.Minute
	if os.Getenv("OUTRIDER_TEST_FULL") != "" {
		number, within = 1000, 30*time.Second
	}
	root := pkitest.NewAuthority(t, "root", nil)
	s := startLimited(t, 0, root, root)
	s.put("mesh/a.yaml", fmt.Appendf(nil, service, "web", 8080, 80))
	s.put("server.pem", pkitest.PEM(s.server.Certificate))
	key := pkitest.NewKey(t)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	s.put("join.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	for name, account := range map[string]func(i int) string{
		"identities":   func(i int) string { return fmt.Sprintf("web-%d", i) },
		"one identity": func(int) string { return "all" }} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			hosts := make([]*joining, number)
			for i := range hosts {
				hosts[i] = s.newJoining(t, key, account(i), i)
			}
			begun := time.Now()
			var group errgroup.Group
			var retried atomic.Int64
			for _, h := range hosts {
				group.Go(func() error { return h.join(ctx, &retried) })
			}
			err := group.Wait()
			t.Logf("%d hosts in %v, %d attempts were repeated", number, time.Since(begun),
				retried.Load())
			if err != nil {
				t.Error(err)
			}
			for _, h := range hosts {
				h.leave()
			}
		})
	}
}

// joining is a host of TestJoin_Many.
type joining struct {
	agent      identity.Istiod
	node       *corev3.Node
	roots      *x509.CertPool
	connection *grpc.ClientConn
}

func (s *signing) newJoining(t *testing.T, key crypto.Signer, account string, i int) *joining {
	t.Helper()
	signed, err := join.SignToken(pkitest.KeyPEM(t, key), "shop/"+account, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	token := fmt.Sprintf("token-%s-%d", account, i)
	s.put(token, []byte(signed.Text))
	return &joining{roots: s.roots, node: &corev3.Node{
		Id: fmt.Sprintf("sidecar~10.%d.%d.1~vm-%d.shop~shop.svc.cluster.local", i/250, i%250, i),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"NAMESPACE": structpb.NewStringValue("shop")}}},
		agent: identity.Istiod{Address: s.address, RootFile: filepath.Join(s.folder, "server.pem"),
			TokenFile: filepath.Join(s.folder, token), TTL: time.Hour,
			SpiffeID: "spiffe://cluster.local/ns/shop/sa/" + account}}
}

// join requests a certificate and the configuration, and leaves the xDS stream open. As an agent
// does, it repeats requests after transient errors.
func (h *joining) join(ctx context.Context, retried *atomic.Int64) error {
	var issued *identity.IssuedCertificate
	var err error
	for again := true; again; {
		issued, err = h.agent.Issue(ctx, nil, nil)
		again = transient(ctx, err, retried)
	}
	if err != nil {
		return fmt.Errorf("%s: certificate: %w", h.node.Id, err)
	}
	pair, err := tls.X509KeyPair(issued.Pair.ChainPEM, issued.Pair.KeyPEM)
	if err != nil {
		return err
	}
	h.connection, err = grpc.NewClient("passthrough:"+h.agent.Address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: h.roots,
			Certificates: []tls.Certificate{pair}})))
	if err != nil {
		return err
	}
	for again := true; again; {
		err = h.configure(ctx)
		again = transient(ctx, err, retried)
	}
	if err != nil {
		return fmt.Errorf("%s: configuration: %w", h.node.Id, err)
	}
	return nil
}

// transient reports whether an error is transient. If so, it first waits for a second.
func transient(ctx context.Context, err error, retried *atomic.Int64) bool {
	if code := status.Code(err); code != codes.Unavailable && code != codes.ResourceExhausted {
		return false
	}
	retried.Add(1)
	select {
	case <-time.After(time.Second):
		return true
	case <-ctx.Done():
		return false
	}
}

// configure opens a stream, and waits until it has received and accepted clusters and listeners.
// The server sends none before it has read the file with the service.
func (h *joining) configure(ctx context.Context) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(h.connection).
		DeltaAggregatedResources(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	for _, typeURL := range []string{resource.ClusterType, resource.ListenerType} {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: h.node,
			TypeUrl: typeURL}); err != nil {
			_, err = stream.Recv() // Recv returns the reason for the failure
			return err
		}
		for accepted := 0; accepted == 0; {
			answer, err := stream.Recv()
			if err != nil {
				return err
			}
			if answer.TypeUrl == typeURL {
				accepted = len(answer.Resources)
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: answer.TypeUrl,
				ResponseNonce: answer.Nonce}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *joining) leave() {
	if h.connection != nil {
		_ = h.connection.Close()
	}
}
