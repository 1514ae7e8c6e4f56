package decisiontable

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// rootNamespace is the namespace of the policies for all namespaces.
const rootNamespace = "istio-system"

// node returns the node of a case's proxy.
func (c *testCase) node(address string) *corev3.Node {
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": c.name,
		"ISTIO_VERSION": "1.30.2", "CLUSTER_ID": "Kubernetes", "INTERCEPTION_MODE": "NONE",
		"OUTRIDER_IDENTITY": "true", "LABELS": c.labels(),
		"PROXY_CONFIG": map[string]any{"gatewayTopology": map[string]any{
			"numTrustedProxies": c.trustedProxies}}})
	if err != nil {
		panic(err) // a Struct can contain these values
	}
	return &corev3.Node{Id: fmt.Sprintf("%s~%s~vm.%s~%s.svc.cluster.local", c.kind, address, c.name,
		c.name), Cluster: "test", Metadata: metadata,
		UserAgentName: "envoy"}
}

func (c *testCase) labels() map[string]any {
	return map[string]any{"app": service, "version": "v1", "case": c.name,
		"istio": "ingressgateway-" + c.name, "gateway.networking.k8s.io/gateway-name": "gateway"}
}

// keySetRefresh is the interval at which both servers fetch key sets again.
const keySetRefresh = time.Second

// startIstiod runs an istiod, with the objects of all cases in its API server, until the test ends.
func startIstiod(t testing.TB, cases []*testCase, providers *authorizers) source {
	t.Helper()
	control := cluster.Start(t)
	config, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "istio"},
		"data": map[string]any{"mesh": providers.meshConfig(), "meshNetworks": "networks: {}"}})
	if err != nil {
		t.Fatal(err)
	}
	control.Create("/api/v1/namespaces/"+rootNamespace+"/configmaps", string(config))
	create := func(object map[string]any) {
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		metadata, _ := object["metadata"].(map[string]any)
		control.Create(fmt.Sprintf("/apis/%v/namespaces/%v/%s", object["apiVersion"],
			metadata["namespace"], plurals[fmt.Sprint(object["kind"])]), string(text))
	}
	for _, object := range providers.services(t) {
		create(object)
	}
	for _, c := range cases {
		control.Create("/api/v1/namespaces", "metadata: {name: "+c.name+"}")
		for _, object := range c.objects {
			create(object)
		}
	}
	control.StartIstiod("PILOT_MAX_REQUESTS_PER_SECOND=10000",
		fmt.Sprint("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL=", keySetRefresh))
	connection, err := grpc.NewClient(control.IstiodPlaintextAddress(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return func(c *testCase) *workload {
		// The proxy's address must not be that of an endpoint, because istiod would use the
		// endpoint's labels.
		return newWorkload(subscribe(t, connection, c.node("10.255.0.1")))
	}
}

// plurals are the names of kinds in URLs of an API server.
var plurals = map[string]string{"AuthorizationPolicy": "authorizationpolicies",
	"RequestAuthentication": "requestauthentications", "PeerAuthentication": "peerauthentications",
	"Sidecar": "sidecars", "Gateway": "gateways", "VirtualService": "virtualservices",
	"ServiceEntry": "serviceentries", "DestinationRule": "destinationrules"}

// subscribe returns the resources that a server sends for a node.
func subscribe(t testing.TB, connection *grpc.ClientConn,
	node *corev3.Node) []*resource.Resource {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fetch := func(kind string, names ...string) (found []*resource.Resource) {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: kind,
			ResourceNames: names}); err != nil {
			t.Fatal(err)
		}
		for {
			response, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s of %s: %v", kind, node.Id, err)
			}
			if response.TypeUrl != kind {
				continue
			}
			_ = stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: kind, ResourceNames: names,
				VersionInfo: response.VersionInfo, ResponseNonce: response.Nonce})
			for _, r := range response.Resources {
				found = append(found, resource.FromEncoded(kind, nameOf(t, kind, r.Value), r.Value))
			}
			return found
		}
	}
	clusters, listeners := fetch(resource.ClusterType), fetch(resource.ListenerType)
	found := slices.Concat(clusters, listeners)
	if names := endpointsOf(t, clusters); len(names) > 0 {
		found = append(found, fetch(resource.EndpointType, names...)...)
	}
	if names := routesOf(t, listeners); len(names) > 0 {
		found = append(found, fetch(resource.RouteType, names...)...)
	}
	return found
}

// nameOf returns the name in an encoded resource, which is field 1 in all four types.
func nameOf(t testing.TB, kind string, value []byte) string {
	t.Helper()
	for rest := value; len(rest) > 0; {
		number, wire, n := protowire.ConsumeTag(rest)
		if number == 1 && wire == protowire.BytesType {
			if name, m := protowire.ConsumeString(rest[n:]); m > 0 {
				return name
			}
		}
		m := protowire.ConsumeFieldValue(number, wire, rest[max(n, 0):])
		if n < 0 || m < 0 {
			break
		}
		rest = rest[n+m:]
	}
	t.Fatalf("a resource of type %s has no name", kind)
	return ""
}

func endpointsOf(t testing.TB, clusters []*resource.Resource) (names []string) {
	t.Helper()
	for _, r := range clusters {
		var c clusterv3.Cluster
		decode(t, r, &c)
		if c.GetType() == clusterv3.Cluster_EDS {
			names = append(names, c.Name)
		}
	}
	return names
}

func routesOf(t testing.TB, listeners []*resource.Resource) (names []string) {
	t.Helper()
	for _, r := range listeners {
		var l listenerv3.Listener
		decode(t, r, &l)
		for _, chain := range append(l.FilterChains, l.GetDefaultFilterChain()) {
			for _, f := range chain.GetFilters() {
				var manager hcmv3.HttpConnectionManager
				if f.GetTypedConfig().UnmarshalTo(&manager) == nil && manager.GetRds() != nil {
					names = append(names, manager.GetRds().RouteConfigName)
				}
			}
		}
	}
	return names
}

func decode(t testing.TB, r *resource.Resource, into proto.Message) {
	t.Helper()
	if err := proto.Unmarshal(r.EncodedMessage(), into); err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
}

// eventually polls until a condition holds.
func eventually(t testing.TB, what string, holds func() (bool, string)) {
	t.Helper()
	parts.EventuallyWithObservation(t, time.Minute, what, holds)
}
