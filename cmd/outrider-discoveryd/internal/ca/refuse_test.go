package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
)

// Requests whose refusal quotes them make neither a long line in the log nor a long status.
func TestRefuse_BoundsWhatARequestSays(t *testing.T) {
	root := pkitest.NewAuthority(t, "root", nil)
	var log bytes.Buffer
	s, err := New(files(t, pkitest.PEM(root.Certificate), pkitest.KeyPEM(t, root.Key), nil),
		Options{Board: condition.NewBoard(), Logger: slog.New(slog.NewJSONHandler(&log, nil)),
			Authenticate: func(xds.Peer) (auth.Caller, error) {
				return auth.Caller{Identity: auth.Identity{Domain: "cluster.local",
					Namespace: "default", Account: "web"}}, nil
			},
			Wait:    func(context.Context, xds.Peer, bool) error { return nil },
			Trust:   func([]*x509.Certificate) {},
			Watcher: watch.NewNotifier(watch.Delays{}, nil)})
	if err != nil {
		t.Fatal(err)
	}
	own := key(t, pki.ECDSAP256)
	for name, extension := range map[string]pkix.Extension{
		"an invalid URI":      names(t, name(6, "spiffe://"+strings.Repeat("\x01", 8000))),
		"another identity":    names(t, name(6, ownID+strings.Repeat("x", 8000))),
		"a host and a URI":    names(t, name(2, strings.Repeat("x", 8000)), name(6, ownID)),
		"an extension's name": {Id: append(asn1.ObjectIdentifier{2, 5}, slices.Repeat([]int{1}, 8000)...)},
	} {
		log.Reset()
		_, err := s.CreateCertificate(t.Context(), &securityv1.IstioCertificateRequest{
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
