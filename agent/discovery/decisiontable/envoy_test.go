package decisiontable

import (
	"context"
	"fmt"
	"net"
	"net/url"
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

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

const bootstrap = `{
  "node": {"id": "table", "cluster": "test"},
  "admin": {"address": {"pipe": {"path": %[1]q}}},
  "layered_runtime": {"layers": [{"name": "outrider", "static_layer": {"re2.max_program_size.error_level": 32768}}]},
  "dynamic_resources": {
    "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},
    "cds_config": {"ads": {}, "resource_api_version": "V3"},
    "lds_config": {"ads": {}, "resource_api_version": "V3"}
  },
  "static_resources": {"clusters": [%[2]s, %[3]s]}
}`

const socketCluster = `{
  "name": %q, "type": "STATIC", "connect_timeout": "1s",
  "load_assignment": {"cluster_name": "x", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": %q}}}}]}]},
  "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
    "explicit_http_config": {"http2_protocol_options": {}}}}}`

// runningEnvoy is a real Envoy with the resources of all workloads.
type runningEnvoy struct {
	*parts.EnvoyProcess
	mu      sync.Mutex
	refused []string
}

func (*runningEnvoy) OnConnect(xds.Stream)                        {}
func (*runningEnvoy) OnDisconnect(xds.Stream, error)              {}
func (*runningEnvoy) OnPush(xds.Stream, xds.Push)                 {}
func (*runningEnvoy) OnAck(xds.Stream, string, string)            {}
func (*runningEnvoy) OnNackResolved(xds.Stream, string, []string) {}
func (e *runningEnvoy) OnNack(_ xds.Stream, refusal xds.Refusal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = append(e.refused, fmt.Sprintf("%v: %s", refusal.Resources, refusal.Error))
}

// expectAccepted fails the test if Envoy refused a resource.
func (e *runningEnvoy) expectAccepted(t testing.TB) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, why := range e.refused {
		t.Errorf("refused: %s", why)
	}
}

// fixed is an xds.Source with the same resources for every client.
type fixed struct{ feed *resource.Feed }

func (s fixed) Feed(*corev3.Node) (*resource.Feed, error) { return s.feed, nil }

// startEnvoy runs an Envoy until the test ends, and waits until its listeners listen.
func startEnvoy(t testing.TB, workloads map[string]*workload, pki *identities) *runningEnvoy {
	t.Helper()
	folder, e := parts.ShortDir(t), &runningEnvoy{}
	source := fixed{resource.NewFeed()}
	source.feed.Publish(resource.Change{Set: all(workloads)})
	ads, err := xds.NewServer(xds.Options{Source: source, Observer: e})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := xds.Listen(xds.ListenOptions{Path: filepath.Join(folder, "xds.sock")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- ads.Serve(ctx, listener) }()
	t.Cleanup(func() { cancel(); <-served })
	pki.serve(t, filepath.Join(folder, "sds.sock"))
	admin := filepath.Join(folder, "admin.sock")
	e.EnvoyProcess = parts.StartEnvoy(t, admin, fmt.Sprintf(bootstrap, admin,
		fmt.Sprintf(socketCluster, "xds", filepath.Join(folder, "xds.sock")),
		fmt.Sprintf(socketCluster, "sds-grpc", filepath.Join(folder, "sds.sock"))))
	eventually(t, "Envoy has its listeners", func() (bool, string) {
		live, warming := e.Stat("listener_manager.workers_started"),
			e.Stat("listener_manager.total_listeners_warming")
		return live == 1 && warming == 0, fmt.Sprintf("workers %d, warming %d", live, warming)
	})
	return e
}

// serve serves the certificate and trusted roots of each workload on a socket until the test ends.
func (i *identities) serve(t testing.TB, path string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	chain, key := i.issue(t, "spiffe://cluster.local/ns/here/sa/vm")
	server, done := grpc.NewServer(), make(chan error, 1)
	secretv3.RegisterSecretDiscoveryServiceServer(server, secrets{own: map[string]*tlsv3.Secret{
		"default": {Name: "default", Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(chain),
				PrivateKey: inline(key)}}},
		"ROOTCA": {Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: inline(pkitest.PEM(i.authority.Certificate))}}}}})
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
}

func inline(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}

// issue returns a certificate with a SPIFFE ID, and its key.
func (i *identities) issue(t testing.TB, id string) (chain, key []byte) {
	t.Helper()
	leaf := pkitest.LeafTemplate("workload", time.Hour)
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	leaf.URIs = []*url.URL{uri}
	return i.authority.Issue(t, leaf)
}

// secrets serves certificates over SDS, as an agent does.
type secrets struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	own map[string]*tlsv3.Secret
}

// StreamSecrets implements SDS: it answers each request for names.
func (s secrets) StreamSecrets(
	stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	had := ""
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		names := strings.Join(request.ResourceNames, ",")
		if names == had {
			continue
		}
		had = names
		response := &discoveryv3.DiscoveryResponse{TypeUrl: request.TypeUrl, VersionInfo: "1",
			Nonce: names}
		for _, name := range request.ResourceNames {
			secret, err := anypb.New(s.own[name])
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
