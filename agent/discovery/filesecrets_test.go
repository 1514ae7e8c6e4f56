package discovery_test

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/scripts/parts"
)

// agentSecrets serves the secrets that istiod expects an agent to serve: certificates from files,
// named file-cert:CERT~KEY and file-root:CA, and those of an identity.
type agentSecrets struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	own   map[string]*tlsv3.Secret
	ready <-chan struct{} // closed when there are secrets; nil: there are secrets from the start
}

// startSecrets serves the secrets until the test ends, and returns the address in the form of a
// bootstrap (JSON of a core.v3.Address).
func startSecrets(t testing.TB, secrets agentSecrets) string {
	t.Helper()
	socket := filepath.Join(parts.ShortDir(t), "sds.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, secrets)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return fmt.Sprintf(`{"pipe": {"path": %q}}`, socket)
}

// StreamSecrets implements SDS: it answers each request for new names.
func (s agentSecrets) StreamSecrets(
	stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	var had []string
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if slices.Equal(had, request.ResourceNames) {
			continue
		}
		had = request.ResourceNames
		if s.ready != nil {
			select {
			case <-s.ready:
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		response := &discoveryv3.DiscoveryResponse{TypeUrl: request.TypeUrl, VersionInfo: "1",
			Nonce: strings.Join(had, ",")}
		for _, name := range had {
			found := s.own[name]
			if found == nil {
				found = fileSecret(name)
			}
			secret, err := anypb.New(found)
			if err != nil {
				return err
			}
			response.Resources = append(response.Resources, secret)
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

func fileSecret(name string) *tlsv3.Secret {
	file := func(path string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
	}
	if pair, ok := strings.CutPrefix(name, "file-cert:"); ok {
		certificate, key, _ := strings.Cut(pair, "~")
		return &tlsv3.Secret{Name: name,
			Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: file(certificate), PrivateKey: file(key)}}}
	}
	authority, revoked, _ := strings.Cut(strings.TrimPrefix(name, "file-root:"), "~")
	context := &tlsv3.CertificateValidationContext{TrustedCa: file(authority)}
	if revoked != "" {
		context.Crl = file(revoked)
	}
	return &tlsv3.Secret{Name: name,
		Type: &tlsv3.Secret_ValidationContext{ValidationContext: context}}
}
