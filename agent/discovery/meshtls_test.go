package discovery_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

// TestMeshTLS_Servers: MeshConfig's TLS settings apply to a server that has no protocol versions of
// its own, and not to one that has.
func TestMeshTLS_Servers(t *testing.T) {
	mesh, config := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
	cert, key := certificate(t)
	ports := freePorts(t, 2)
	for i, more := range []string{"",
		", minProtocolVersion: TLSV1_2, cipherSuites: [ECDHE-ECDSA-AES128-GCM-SHA256]"} {
		text := fmt.Sprintf(doorGateway, fmt.Sprintf("door-%d", i), ports[i], "F")
		text = strings.NewReplacer("F/cert.pem", cert, "F/key.pem", key+more).Replace(text)
		write(t, filepath.Join(mesh, fmt.Sprintf("door-%d.yaml", i)), text)
	}
	write(t, config, "")
	server, changes := start(t, discovery.Options{Files: []string{mesh}, Namespace: "shop",
		Settings: discovery.Settings{MeshConfigFile: config}})
	startEnvoy(t, "router", server)
	hello := func(port int, client *tls.Config) error {
		client.InsecureSkipVerify = true
		connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), client)
		if err == nil {
			err = connection.Close()
		}
		return err
	}
	const aes128, aes256 = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	old := func(suite uint16) *tls.Config {
		return &tls.Config{ServerName: "door-0.test", MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{suite}}
	}
	curve := func(id tls.CurveID) *tls.Config {
		return &tls.Config{ServerName: "door-0.test", CurvePreferences: []tls.CurveID{id}}
	}
	for _, step := range []struct {
		config string
		is     map[string]bool
	}{
		{"", map[string]bool{"128": true, "256": true, "P-256": true, "X25519": true,
			"other 128": true, "other 256": false}},
		{"tlsDefaults: {minProtocolVersion: TLSV1_3}", map[string]bool{"128": false, "256": false,
			"P-256": true, "X25519": true, "other 128": true, "other 256": false}},
		{"tlsDefaults: {cipherSuites: [ECDHE-ECDSA-AES256-GCM-SHA384]}",
			map[string]bool{"128": false, "256": true, "P-256": true, "X25519": true,
				"other 128": true, "other 256": false}},
		{"tlsDefaults: {ecdhCurves: [P-256, P-384]}", map[string]bool{"128": true, "256": true,
			"P-256": true, "X25519": false, "other 128": true, "other 256": false}},
		{"tlsDefaults: {ecdhCurves: [P-256, P-521, P-384, X25519, X25519MLKEM768]}",
			map[string]bool{"P-256": true, "X25519": true}},
	} {
		write(t, config, step.config)
		changes <- []string{config}
		for name, want := range step.is {
			port, client := ports[0], map[string]*tls.Config{"128": old(aes128), "256": old(aes256),
				"P-256": curve(tls.CurveP256), "X25519": curve(tls.X25519)}[strings.TrimPrefix(name,
				"other ")]
			if strings.HasPrefix(name, "other ") {
				port, client.ServerName = ports[1], "door-1.test"
			}
			eventually(t, fmt.Sprintf("with %q, %s is taken: %v", step.config, name, want),
				func() (bool, string) {
					err := hello(port, client)
					return (err == nil) == want, fmt.Sprint(err)
				})
		}
		for _, p := range server.Problems() {
			t.Errorf("%q: %s", step.config, p)
		}
	}
}

func TestMeshTLS_ReportsServersWithoutVersion(t *testing.T) {
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, config, "tlsDefaults: {minProtocolVersion: TLSV1_3}")
	const gateway = "Gateway shop/g: {selector: {app: edge}, servers: [{port: {number: 443, " +
		"name: s, protocol: HTTPS}, hosts: [a.test], tls: {mode: SIMPLE, serverCertificate: /c, " +
		"privateKey: /k, maxProtocolVersion: TLSV1_2%s}}]}"
	for own, want := range map[string]string{"": "servers[0].tls.maxProtocolVersion",
		", minProtocolVersion: TLSV1_2": ""} {
		server, _ := start(t, discovery.Options{Files: []string{meshOf(t, fmt.Sprintf(gateway,
			own))}, Settings: discovery.Settings{MeshConfigFile: config}})
		feedOf(t, server, "router")
		reported := ""
		for _, p := range server.Problems() {
			reported += p.Field
		}
		if !strings.HasSuffix(reported, want) || want == "" && reported != "" {
			t.Errorf("%q: reported %q, want %q", own, reported, want)
		}
	}
}

// TestMeshTLS_Services checks the curves and cipher suites that proxies offer to a service, which
// are the same as with istiod.
func TestMeshTLS_Services(t *testing.T) {
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, config,
		"tlsDefaults: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-256, none], cipherSuites: "+
			"[ECDHE-ECDSA-AES256-GCM-SHA384]}")
	server, _ := start(t, discovery.Options{Files: []string{meshOf(t, plainEntry,
		"DestinationRule shop/d: {host: x.test, trafficPolicy: {tls: {mode: SIMPLE}}}")},
		Settings: discovery.Settings{MeshConfigFile: config}})
	params := upstreamTLS(t, server).CommonTlsContext.TlsParams
	if !slices.Equal(params.EcdhCurves, []string{"P-256"}) || !slices.Equal(params.CipherSuites,
		[]string{"ECDHE-ECDSA-AES256-GCM-SHA384"}) ||
		params.TlsMinimumProtocolVersion != tlsv3.TlsParameters_TLSv1_2 {
		t.Errorf("offers %v", params)
	}
}

const plainEntry = "ServiceEntry shop/x: {hosts: [x.test], resolution: STATIC, ports: [{number: " +
	"80, name: h, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}"

// upstreamTLS returns the TLS context of the cluster of x.test.
func upstreamTLS(t *testing.T, server *discovery.Server) *tlsv3.UpstreamTlsContext {
	t.Helper()
	snapshot, _ := feedOf(t, server, "sidecar").Current()
	r := snapshot.Get(resource.Key{Type: resource.ClusterType, Name: "outbound|80||x.test"})
	if r == nil {
		t.Fatal("there is no cluster")
	}
	var cluster clusterv3.Cluster
	if err := proto.Unmarshal(r.EncodedMessage(), &cluster); err != nil {
		t.Fatal(err)
	}
	var context tlsv3.UpstreamTlsContext
	if err := cluster.TransportSocket.GetTypedConfig().UnmarshalTo(&context); err != nil {
		t.Fatal(err)
	}
	return &context
}

// TestServiceAccounts_ExpectedInCertificates: the proxy accepts the certificate of a service
// account if its trust domain is the mesh's or an alias, and refuses that of another trust domain.
func TestServiceAccounts_ExpectedInCertificates(t *testing.T) {
	a := newAuthority(t)
	mesh, config, port := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml"), parts.FreePort(t)
	cert, key := a.issue(t, 10, "ns/shop/sa/far")
	writePair(t, mesh, cert, key)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	write(t, roots, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Leaf.Raw})))
	far := (&backend{name: "far"}).serveTLS(t, filepath.Join(mesh, "cert.pem"), filepath.Join(mesh,
		"key.pem"))
	write(t, filepath.Join(mesh, "far.yaml"), fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far}
spec:
  hosts: [far.test]
  resolution: STATIC
  subjectAltNames: [elsewhere.test]
  ports: [{number: %d, name: p, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, serviceAccount: far, ports: {p: %d}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: far}
spec:
  host: far.test
  trafficPolicy:
    connectionPool: {http: {maxRequestsPerConnection: 1}}
    tls: {mode: SIMPLE, sni: far.test, caCertificates: %s}
`, port, far, roots))
	write(t, config, "")
	server, changes := start(t, discovery.Options{Files: []string{mesh}, Namespace: "shop",
		Settings: discovery.Settings{MeshConfigFile: config}})
	startEnvoy(t, "sidecar", server)
	for _, step := range []struct{ config, want string }{
		{"", "status 200"},
		{"trustDomain: other.example", "status 503"},
		{"trustDomain: other.example\ntrustDomainAliases: [cluster.local]", "status 200"},
	} {
		write(t, config, step.config)
		changes <- []string{config}
		eventually(t, fmt.Sprintf("with %q", step.config), func() (bool, string) {
			differences := (&exchange{ask: []string{"GET far.test/"}, expect: []string{step.want},
				times: 1}).run(port)
			return len(differences) == 0, strings.Join(differences, "; ")
		})
	}
}

// TestMeshTLS_ServesTrustBundleToAgents: a client that subscribes to ProxyConfig, as Istio's agents
// do, gets the CA certificates of MeshConfig at first and after each change, over delta and
// state-of-the-world xDS.
func TestMeshTLS_ServesTrustBundleToAgents(t *testing.T) {
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	authority := func() (text string, yaml string) {
		path, _ := certificate(t)
		content, err := os.ReadFile(path)
		must(t, err)
		return string(content), "- pem: |\n    " +
			strings.ReplaceAll(strings.TrimSpace(string(content)), "\n", "\n    ") + "\n"
	}
	first, firstYAML := authority()
	second, secondYAML := authority()
	write(t, config, "caCertificates:\n"+firstYAML)
	server, changes := start(t, discovery.Options{Files: []string{t.TempDir()},
		Settings: discovery.Settings{MeshConfigFile: config}})
	if problems := server.Problems(); len(problems) != 0 {
		t.Errorf("problems %v", problems)
	}
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(serveXDS(t, server))
	delta, err := client.DeltaAggregatedResources(t.Context())
	must(t, err)
	must(t, delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node("sidecar", "shop", nil),
		TypeUrl: resource.ProxyConfigType}))
	state, err := client.StreamAggregatedResources(t.Context())
	must(t, err)
	must(t, state.Send(&discoveryv3.DiscoveryRequest{Node: node("sidecar", "shop", nil),
		TypeUrl: resource.ProxyConfigType}))
	reported := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		check := func(how string, packed *anypb.Any) {
			t.Helper()
			var config meshapi.ProxyConfig
			must(t, packed.UnmarshalTo(&config))
			if !slices.Equal(config.CaCertificatesPem, want) {
				t.Errorf("%s: reported %q, want %q", how, config.CaCertificatesPem, want)
			}
		}
		one, err := delta.Recv()
		must(t, err)
		check("delta", one.Resources[0].Resource)
		must(t, delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ProxyConfigType,
			ResponseNonce: one.Nonce}))
		all, err := state.Recv()
		must(t, err)
		check("state of the world", all.Resources[0])
		must(t, state.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resource.ProxyConfigType,
			ResponseNonce: all.Nonce, VersionInfo: all.VersionInfo}))
	}
	reported(first)
	write(t, config, "caCertificates:\n"+secondYAML+firstYAML+secondYAML)
	changes <- []string{config}
	reported(first, second)
	write(t, config, "caCertificates: [{pem: nothing}]\n")
	changes <- []string{config}
	write(t, config, "")
	changes <- []string{config}
	reported()
}

// serveXDS serves xDS over gRPC until the test ends.
func serveXDS(t *testing.T, source xds.Source) *grpc.ClientConn {
	t.Helper()
	server, err := xds.NewServer(xds.Options{Source: source})
	must(t, err)
	socket := filepath.Join(parts.ShortDir(t), "xds.sock")
	listener, err := xds.Listen(xds.ListenOptions{Path: socket})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	connection, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() {
		must(t, connection.Close())
		cancel()
		must(t, <-served)
	})
	return connection
}

// TestMeshTLS_ReportsBundlesOfMeshConfig: Options.OnTrustChange receives the SPIFFE bundles of
// MeshConfig at the start and when they change.
func TestMeshTLS_ReportsBundlesOfMeshConfig(t *testing.T) {
	config, reported := filepath.Join(t.TempDir(), "mesh.yaml"), make(chan []string, 10)
	write(t, config, "caCertificates: [{spiffeBundleUrl: one.test/bundle}]")
	_, changes := start(t, discovery.Options{Files: []string{t.TempDir()},
		OnTrustChange: func(_, bundles []string) { reported <- bundles },
		Settings:      discovery.Settings{MeshConfigFile: config}})
	for _, want := range []string{"https://one.test/bundle", "https://two.test"} {
		if got := <-reported; len(got) != 1 || got[0] != want {
			t.Errorf("reported %v, want %s", got, want)
		}
		write(t, config, "caCertificates: [{spiffeBundleUrl: 'https://two.test'}]")
		changes <- []string{config}
	}
}
