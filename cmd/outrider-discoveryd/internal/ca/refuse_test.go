package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
)

// logging returns a Server that logs to a buffer. Its Authenticate returns caller and refusal for
// every client.
func logging(t *testing.T, log *bytes.Buffer, caller auth.Caller, refusal error) *Server {
	t.Helper()
	root := pkitest.NewAuthority(t, "root", nil)
	s, err := New(files(t, pkitest.PEM(root.Certificate), pkitest.KeyPEM(t, root.Key), nil),
		Options{Conditions: condition.NewRegistry(), Logger: slog.New(slog.NewJSONHandler(log,
			nil)),
			Authenticate:     func(xds.Peer) (auth.Caller, error) { return caller, refusal },
			WaitForRateLimit: func(context.Context, xds.Peer, bool) error { return nil },
			TrustClientRoots: func([]*x509.Certificate) {},
			Watcher:          watch.NewNotifier(watch.Delays{}, nil)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// If the refusal of a request quotes the request, the log line and the gRPC status are short
// nevertheless.
func TestRefuse_BoundsWhatARequestSays(t *testing.T) {
	var log bytes.Buffer
	caller := auth.Caller{Identity: auth.Identity{Domain: "cluster.local", Namespace: "default",
		Account: "web"}}
	s := logging(t, &log, caller, nil)
	own := key(t, pki.ECDSAP256)
	for name, extension := range map[string]pkix.Extension{
		"an invalid URI":      names(t, name(6, "spiffe://"+strings.Repeat("\x01", 8000))),
		"another identity":    names(t, name(6, ownID+strings.Repeat("x", 8000))),
		"a host and a URI":    names(t, name(2, strings.Repeat("x", 8000)), name(6, ownID)),
		"an extension's name": {Id: append(asn1.ObjectIdentifier{2, 5}, slices.Repeat([]int{1}, 8000)...)},
	} {
		log.Reset()
		_, err := s.issue(xds.Peer{}, caller, &securityv1.IstioCertificateRequest{
			Csr: request(t, own, func(r *x509.CertificateRequest) {
				r.URIs, r.ExtraExtensions = nil, []pkix.Extension{extension}
			})})
		if code := status.Code(err); code != codes.InvalidArgument && code != codes.PermissionDenied {
			t.Errorf("%s: %v", name, code)
		}
		if said := len(status.Convert(err).Message()); said > 300 || log.Len() == 0 ||
			log.Len() > 2000 {
			t.Errorf("%s: a status of %d bytes, a line of %d", name, said, log.Len())
		}
	}
}

// arriving is a listener, and also the connection that its Accept returns. The connection has the
// remote address from.
type arriving struct {
	net.Conn
	from string
}

func (a arriving) Accept() (net.Conn, error) { return a, nil }
func (a arriving) Addr() net.Addr            { return a.RemoteAddr() }
func (a arriving) LocalAddr() net.Addr       { return &net.TCPAddr{} }
func (a arriving) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.from))
}

// call is a gRPC call that panics if its request is read.
type call struct {
	grpc.ServerStream
	ctx context.Context
}

func (c call) Context() context.Context { return c.ctx }

// A host without an identity cannot cause more log lines by using several addresses of its IPv6
// network.
func TestRefuse_BoundsTheLinesOfANetwork(t *testing.T) {
	var log bytes.Buffer
	s := logging(t, &log, auth.Caller{}, status.Error(codes.Unauthenticated, "no credential"))
	for i := range 2 * unknownLimits.PerClass {
		listener := xds.LimitConnections(arriving{from: fmt.Sprintf("[2001:db8::%d]:1", i+1)})
		connection, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: connection.RemoteAddr()})
		err = s.createCertificate(nil, call{ctx: ctx})
		if status.Code(err) != codes.Unauthenticated {
			t.Error(err)
		}
	}
	if lines := strings.Count(log.String(), "no credential"); lines != unknownLimits.PerClass {
		t.Errorf("%d lines", lines)
	}
}
