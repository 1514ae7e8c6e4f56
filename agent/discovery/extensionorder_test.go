package discovery_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// orderCases is the number of ports, each with extensions of its own, that
// TestExtensions_OrderIsIstiods compares.
const orderCases = 120

// orderMesh returns a gateway with many ports, policies, and random extensions for each port. The
// phase of an extension places its filter before, between or after the filters of the policies.
func orderMesh(ports []int) string {
	random := rand.New(rand.NewPCG(1, 2))
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	var out strings.Builder
	object := func(kind, name, namespace, metadata, spec string) {
		group := map[string]string{"TrafficExtension": "extensions.istio.io/v1alpha1",
			"AuthorizationPolicy": "security.istio.io/v1", "RequestAuthentication": "security.istio.io/v1"}
		version := group[kind]
		if version == "" {
			version = "networking.istio.io/v1"
		}
		fmt.Fprintf(&out, "apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s%s}\n"+
			"spec: {%s}\n---\n", version, kind, name, namespace, metadata, spec)
	}
	object("AuthorizationPolicy", "deny", "shop", "", "action: DENY, rules: [{to: [{operation: "+
		"{paths: [/closed]}}]}]")
	object("RequestAuthentication", "tokens", "shop", "", "jwtRules: [{issuer: a, jwks: '"+
		`{"keys":[{"kty":"RSA","kid":"1","n":"AQAB","e":"AQAB"}]}`+"'}]")
	for i, port := range ports {
		protocol := one("HTTP", "HTTP", "TCP")
		object("Gateway", fmt.Sprintf("g%d", i), "shop", "", fmt.Sprintf(
			"selector: {app: edge}, servers: [{port: {number: %d, name: p, protocol: %s}, hosts: ['*']}]",
			port, protocol))
		object("VirtualService", fmt.Sprintf("v%d", i), "shop", "", fmt.Sprintf(
			"hosts: ['*'], gateways: [g%d], %s: [{route: [{destination: {host: a.test}}]}]", i,
			strings.ToLower(protocol)))
		for n := range 1 + random.IntN(5) {
			spec := fmt.Sprintf("match: [{%sports: [{number: %d}%s]}]", one("", "mode: CLIENT, ",
				"mode: SERVER, ", "mode: CLIENT_AND_SERVER, "), port, one("", ", {number: 1}"))
			spec += one("", ", phase: AUTHN", ", phase: AUTHZ", ", phase: STATS")
			spec += one("", "", ", priority: 0", ", priority: 10", ", priority: -10")
			spec += one("", "", ", selector: {matchLabels: {app: edge}}",
				", selector: {matchLabels: {app: other}}")
			spec += one(", lua: {inlineCode: '--'}", ", wasm: {url: oci://a.test/b:c}",
				", wasm: {url: oci://a.test/b:c, type: NETWORK}", ", wasm: {url: a.test/b, type: HTTP}")
			object("TrafficExtension", fmt.Sprintf("%s%d-%d", one("a", "b", "c"), i, n),
				one("shop", "istio-system", "other"), one("", "",
					`, creationTimestamp: "2026-01-01T00:00:00Z"`, `, creationTimestamp: "2025-01-01T00:00:00Z"`),
				spec)
		}
	}
	object("ServiceEntry", "a", "shop", "", "hosts: [a.test], resolution: STATIC, ports: [{number: 80, "+
		"name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1}]")
	return out.String()
}

// filterOrder returns the names of the filters in a listener that are extensions, or that both
// istiod and the embedded server create.
func filterOrder(t *testing.T, l *listenerv3.Listener) (names []string) {
	add := func(name string) {
		if strings.HasPrefix(name, model.ExtensionNamePrefix) || slices.Contains([]string{
			"envoy.filters.http.rbac", "envoy.filters.network.rbac", "envoy.filters.http.jwt_authn",
			"envoy.filters.http.fault", "envoy.filters.http.cors", "envoy.filters.http.router",
			"envoy.filters.network.tcp_proxy", "envoy.filters.network.http_connection_manager"}, name) {
			names = append(names, model.IstioFilterName(name))
		}
	}
	for _, chain := range l.FilterChains {
		for _, f := range chain.Filters {
			add(f.Name)
			var manager hcmv3.HttpConnectionManager
			if f.GetTypedConfig().UnmarshalTo(&manager) != nil {
				continue
			}
			for _, f := range manager.HttpFilters {
				if f.GetTypedConfig() == nil && f.GetConfigDiscovery() == nil {
					t.Errorf("filter %s has no configuration", f.Name)
				}
				add(f.Name)
			}
		}
	}
	return names
}

// TestExtensions_OrderIsIstiods compares the order of filters with that of a real istiod.
func TestExtensions_OrderIsIstiods(t *testing.T) {
	folder := t.TempDir()
	ports := freePorts(t, orderCases)
	write(t, filepath.Join(folder, "mesh.yaml"), orderMesh(ports))
	server, _ := start(t, discovery.Options{Files: []string{folder}, Namespace: "shop",
		Domain: "cluster.local"})
	node := &corev3.Node{Id: "router~10.255.0.1~vm.shop~shop.svc.cluster.local",
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"NAMESPACE": textValue("shop"), "CLUSTER_ID": textValue("Kubernetes"),
			"LABELS": structpb.NewStructValue(&structpb.Struct{
				Fields: map[string]*structpb.Value{"app": textValue("edge")}})}}}
	feed, err := server.Feed(node)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, _ := feed.Current()
	ours := map[string][]string{}
	for name, r := range snapshot.ByType(resource.ListenerType) {
		var l listenerv3.Listener
		if err := proto.Unmarshal(r.EncodedMessage(), &l); err != nil {
			t.Fatal(err)
		}
		ours[name] = filterOrder(t, &l)
	}
	if len(ours) != orderCases {
		t.Fatalf("%d listeners", len(ours))
	}

	var at struct {
		Address struct {
			Address string
			Port    int `json:"port_value"`
		} `json:"socket_address"`
	}
	if err := json.Unmarshal([]byte(startIstiod(t, folder, "enableAutoMtls: false")), &at); err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient(fmt.Sprintf("%s:%d", at.Address.Address, at.Address.Port),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node,
		TypeUrl: resource.ListenerType}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	istiods := map[string][]string{}
	for _, packed := range answer.Resources {
		var l listenerv3.Listener
		if err := packed.UnmarshalTo(&l); err != nil {
			t.Fatal(err)
		}
		if _, known := ours[l.Name]; known {
			istiods[l.Name] = filterOrder(t, &l)
		}
	}
	different := 0
	for name := range ours {
		if d := cmp.Diff(istiods[name], ours[name]); d != "" {
			different++
			t.Errorf("%s: -istiod +Outrider\n%s", name, d)
		}
	}
	t.Logf("%d of %d listeners have istiod's order", orderCases-different, orderCases)
}
