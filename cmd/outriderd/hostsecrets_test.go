package main_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/rig"
)

// hostSecrets is an SDS server of the host, for credentials sds://NAME. It sends a secret on
// request and after each change.
type hostSecrets struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	mu      sync.Mutex
	secrets map[string]*tlsv3.Secret
	changed chan struct{} // closed, and replaced, at each change
}

// serveHostSecrets runs the SDS server at a Unix socket until the test ends.
func serveHostSecrets(t *testing.T, socket string) *hostSecrets {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &hostSecrets{secrets: map[string]*tlsv3.Secret{}, changed: make(chan struct{})}
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func inline(text []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: text}}
}

// set replaces the two secrets of a credential: the certificate with its key, and the CA
// certificates.
func (s *hostSecrets) set(name string, chain, key, roots []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets[name] = &tlsv3.Secret{Name: name,
		Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(chain), PrivateKey: inline(key)}}}
	s.secrets[name+"-cacert"] = &tlsv3.Secret{Name: name + "-cacert",
		Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(roots)}}}
	close(s.changed)
	s.changed = make(chan struct{})
}

// response returns the secrets with the given names, and a channel that the next change closes.
func (s *hostSecrets) response(names []string) (*discoveryv3.DiscoveryResponse, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &discoveryv3.DiscoveryResponse{TypeUrl: secretType, VersionInfo: time.Now().String(),
		Nonce: "any"}
	for _, name := range names {
		if secret := s.secrets[name]; secret != nil {
			packed, _ := anypb.New(secret)
			out.Resources = append(out.Resources, packed)
		}
	}
	return out, s.changed
}

const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// StreamSecrets implements the secret discovery service.
func (s *hostSecrets) StreamSecrets(
	stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		// each stream requests one name; later requests are ACKs
		for err := error(nil); err == nil; {
			_, err = stream.Recv()
		}
	}()
	for {
		response, changed := s.response(first.ResourceNames)
		if len(response.Resources) > 0 {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-gone:
			return nil
		}
	}
}

// TestCredentials_OfAnSDSServerOfTheHost repeats the checks of credentials in files for credentials
// sds://NAME, which the agent requests from an SDS server of the host.
func TestCredentials_OfAnSDSServerOfTheHost(t *testing.T) {
	t.Parallel()
	c := newCredentials(t)
	socket := filepath.Join(c.Dir, "host-sds.sock")
	mesh := strings.ReplaceAll(fmt.Sprintf(credentialMesh, c.https, c.plainHTTP),
		"credentialName: ", "credentialName: sds://")
	c.WriteFile("mesh.d/credentials.yaml", strings.ReplaceAll(mesh, "caCertCredentialName: mutual",
		"caCertCredentialName: sds://mutual-cacert"))
	c.StartReady()

	file := filepath.Join(c.Dir, "mesh.d", "credentials.yaml")
	reports := func(text string) {
		t.Helper()
		checked := c.RunOutrider("mesh", "check")
		if text = file + ":1: Gateway default/edge: " + text; checked.ExitCode != api.ExitRefused ||
			!strings.Contains(checked.Stderr, text) {
			t.Errorf("mesh check: exit %d, without %q:\n%s", checked.ExitCode, text, checked.Stderr)
		}
	}
	reports("sds://simple is of an SDS server of the host, and none is configured")
	c.WriteFile("conf.d/61-sds.toml", fmt.Sprintf("[identity]\ncredentials_sds = %q\n", socket))
	reload := func() {
		t.Helper()
		if result := c.RunOutrider("reload"); result.ExitCode != 0 {
			t.Fatalf("reload: exit %d: %s", result.ExitCode, result.Stderr)
		}
	}
	reload()
	reports(socket + " does not exist")

	host := serveHostSecrets(t, socket)
	issue := func(name string) []byte {
		chain, key := c.root.Issue(t, pkitest.LeafTemplate(name, time.Hour))
		host.set("sds://"+name, chain, key, pkitest.PEM(c.root.Certificate))
		return chain
	}
	simple := issue("simple")
	// This server works although the credentials of the other servers are missing.
	c.serves("simple.test", nil, simple)
	chain, key := c.root.Issue(t, pkitest.LeafTemplate("client", time.Hour))
	client, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	mutual, optional := issue("mutual"), issue("optional")
	issue("client")
	c.serves("mutual.test", &client, mutual)
	c.serves("optional.test", nil, optional)
	if _, err := c.get("mutual.test", nil); err == nil {
		t.Error("mutual.test accepts a client without a certificate")
	}
	rig.Eventually(t, time.Minute, "the DestinationRule's credential is accepted", func() bool {
		code, body, err := c.GetHostThroughEnvoy("mutual.test", c.plainHTTP, "/")
		return err == nil && code == http.StatusOK && body == "arrived"
	})
	rig.Eventually(t, time.Minute, "mesh check finds nothing", func() bool {
		return c.RunOutrider("mesh", "check").ExitCode == 0
	})
	c.serves("simple.test", nil, issue("simple"))

	// An SDS server that sends changes of one secret continuously delays neither changes of others
	// nor reloads.
	flood, end := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	flooding.Go(func() {
		one, oneKey := c.root.Issue(t, pkitest.LeafTemplate("optional", time.Hour))
		for flood.Err() == nil {
			host.set("sds://optional", one, oneKey, pkitest.PEM(c.root.Certificate))
		}
	})
	c.serves("simple.test", nil, issue("simple"))
	reload()
	c.serves("simple.test", nil, issue("simple"))
	end()
	flooding.Wait()
}
