package main

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// stream opens an xDS stream from a loopback address, which is also the address in the client's
// node.
func (s *signing) stream(address string, shown tls.Certificate) {
	s.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	connection, err := grpc.NewClient("passthrough:"+s.address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: s.roots,
			Certificates: []tls.Certificate{shown}})),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", to)
		}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = connection.Close() })
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default",
		"SERVICE_ACCOUNT": "web"})
	if err != nil {
		s.t.Fatal(err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		StreamAggregatedResources(s.t.Context())
	if err == nil {
		err = stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resource.ClusterType,
			Node: &corev3.Node{Id: "sidecar~" + address + "~vm.default~default.svc.cluster.local",
				Metadata: metadata}})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// The program logs that two hosts use the same certificate.
func TestProgram_ReportsClones(t *testing.T) {
	t.Parallel()
	root := pkitest.NewAuthority(t, "root", nil)
	s := startSigning(t, root, root)
	issued, err := s.agent().Issue(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(issued.Pair.ChainPEM, issued.Pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	s.stream("127.0.0.1", pair)
	s.stream("127.0.0.2", pair)
	serial := issued.Pair.Leaf().SerialNumber.Text(16)
	parts.EventuallyWithObservation(t, 2*time.Minute, "the clone is reported", func() (bool, string) {
		log := logOf(s.file)
		return strings.Contains(log, "hosts seem to be clones of each other: certificate "+serial+
			" of "+ownID+" is used by 127.0.0.1 and 127.0.0.2"), log
	})
}
