package xds

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// bootstrap is the bootstrap of an Envoy that receives all resources on one ADS stream over a Unix
// socket.
const bootstrap = `{
  "node": {"id": %q, "cluster": "test"},
  "admin": {"address": {"pipe": {"path": %q}}},
  "dynamic_resources": {
    "ads_config": {"api_type": %q, "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},
    "cds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"},
    "lds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
  },
  "static_resources": {"clusters": [{
    "name": "xds", "type": "STATIC", "connect_timeout": "1s",
    "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": %q}}}}]}]},
    "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}}
  }]}
}`

// startEnvoy starts an Envoy that receives its resources from a Unix socket.
func startEnvoy(t testing.TB, id, socket string, delta bool) *parts.EnvoyProcess {
	t.Helper()
	admin := filepath.Join(parts.ShortDir(t), "admin.sock")
	api := "GRPC"
	if delta {
		api = "DELTA_GRPC"
	}
	return parts.StartEnvoy(t, admin, fmt.Sprintf(bootstrap, id, admin, api, socket))
}

// backend starts an HTTP server that responds to every request with name, and returns its port.
func backend(t testing.TB, name string) int {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, name)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().(*net.TCPAddr).Port
}

// ask sends an HTTP request to a port. It returns the body of a response with status 200; otherwise
// the status and body, or the error.
func ask(port int) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		Timeout: 5 * time.Second}
	answer, err := client.Get("http://127.0.0.1:" + strconv.Itoa(port) + "/")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Sprintf("%d %s", answer.StatusCode, body)
	}
	return string(body)
}

func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

func address(port int) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{
		SocketAddress: &corev3.SocketAddress{
			Address:       "127.0.0.1",
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}}}}
}

func edsCluster(name string, connectTimeout time.Duration) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, ConnectTimeout: durationpb.New(connectTimeout),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS()}}
}

func assignment(name string, ports ...int) *endpointv3.ClusterLoadAssignment {
	locality := &endpointv3.LocalityLbEndpoints{}
	for _, port := range ports {
		locality.LbEndpoints = append(locality.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: address(port)}}})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{locality}}
}

func routes(name, cluster string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name,
		VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}}}}}}}
}

func packed(t testing.TB, message proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(message)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func httpListener(t testing.TB, name string, port int, routeName,
	statPrefix string) *listenerv3.Listener {
	t.Helper()
	manager := &hcmv3.HttpConnectionManager{StatPrefix: statPrefix,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: overADS(),
			RouteConfigName: routeName}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, &routerv3.Router{})}}}}
	return &listenerv3.Listener{Name: name, Address: address(port),
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, manager)}}}}}}
}

// badListener returns a listener that passes its Validate method, but that Envoy refuses, because
// it has a filter of an unknown type.
func badListener(t testing.TB, name string, port int) *listenerv3.Listener {
	l := httpListener(t, name, port, "r", "bad")
	l.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{
		TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/outrider.test.Unknown"}}
	return l
}

// site returns the resources of one service: cluster, endpoints, listener and route configuration.
func site(t testing.TB, name string, port int, backends ...int) []*resource.Resource {
	t.Helper()
	return []*resource.Resource{
		encoded(t, name, edsCluster(name, time.Second)),
		encoded(t, name, assignment(name, backends...)),
		encoded(t, name, httpListener(t, name, port, name, name)),
		encoded(t, name, routes(name, name)),
	}
}
