package render

import (
	"net/netip"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/bootstrap"
)

const (
	httpProtocolOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	dnsClusterName      = "envoy.cluster.dns"
	dnsFirstRetry       = time.Second      // pause after a failed name resolution
	dnsLastRetry        = 30 * time.Second // longest pause between two tries
	// limits of the discovery cluster, as in Istio's bootstrap
	noLimit = 100000
)

func grpcService(cluster string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster},
	}}
}

func assignment(name string, address *corev3.Address) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: address}},
		}}}},
	}
}

func (b *builder) pipeCluster(name, path string, timeout time.Duration) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          statName(name),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(timeout),
		LoadAssignment:       assignment(name, b.pipe(path, 0)),
	}
}

func (b *builder) grpcPipeCluster(name, path string, timeout time.Duration) *clusterv3.Cluster {
	cluster := b.pipeCluster(name, path, timeout)
	b.http2(cluster)
	return cluster
}

func (b *builder) http2(cluster *clusterv3.Cluster) {
	config := &httpv3.HttpProtocolOptions_ExplicitHttpConfig{}
	config.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
	}
	options := &httpv3.HttpProtocolOptions{}
	options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: config,
	}
	cluster.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		httpProtocolOptions: b.pack(options),
	}
}

// serviceCluster returns the cluster of host:port: static for an IP address, otherwise resolved by
// DNS.
func (b *builder) serviceCluster(name string, service *bootstrap.Server,
	http2 bool) *clusterv3.Cluster {
	host, port, err := splitAddress(service.Address)
	if err == nil && host == "" {
		b.fail("cluster %s: address %q has no host", name, service.Address)
	}
	if err != nil {
		b.fail("cluster %s: address %w", name, err)
		return &clusterv3.Cluster{Name: name}
	}
	cluster := &clusterv3.Cluster{
		Name:           name,
		AltStatName:    statName(name),
		ConnectTimeout: durationpb.New(b.connectTimeout()),
		LoadAssignment: assignment(name, socketAddress(corev3.SocketAddress_TCP, host, port)),
	}
	if _, err := netip.ParseAddr(host); err == nil {
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	} else {
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: b.dnsCluster()}
	}
	if http2 {
		b.http2(cluster)
	}
	if service.Keepalive > 0 {
		seconds := wrapperspb.UInt32(uint32((service.Keepalive + time.Second - 1) / time.Second))
		cluster.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{
			TcpKeepalive: &corev3.TcpKeepalive{KeepaliveTime: seconds},
		}
	}
	cluster.TransportSocket = b.transportSocket(name, host, service.TLS, http2)
	return cluster
}

// dnsCluster replaces the deprecated STRICT_DNS fields. The refresh rate applies to answers without
// a TTL; failures are retried sooner.
func (b *builder) dnsCluster() *clusterv3.Cluster_CustomClusterType {
	family := commondnsv3.DnsLookupFamily_AUTO
	switch v4, v6 := families(b.in.Node); {
	case v4 && v6:
		family = commondnsv3.DnsLookupFamily_ALL
	case v4:
		family = commondnsv3.DnsLookupFamily_V4_ONLY
	case v6:
		family = commondnsv3.DnsLookupFamily_V6_ONLY
	}
	return &clusterv3.Cluster_CustomClusterType{
		Name: dnsClusterName,
		TypedConfig: b.pack(&dnsv3.DnsCluster{
			DnsRefreshRate:  durationpb.New(b.dnsRefreshRate()),
			RespectDnsTtl:   true,
			DnsLookupFamily: family,
			DnsFailureRefreshRate: &dnsv3.DnsCluster_RefreshRate{
				BaseInterval: durationpb.New(dnsFirstRetry),
				MaxInterval:  durationpb.New(dnsLastRetry),
			},
		}),
	}
}

// unlimited raises the limits of a cluster's circuit breakers so high that they have no effect: a
// limit on the discovery stream would only delay configuration.
func unlimited(cluster *clusterv3.Cluster) *clusterv3.Cluster {
	thresholds := func(priority corev3.RoutingPriority) *clusterv3.CircuitBreakers_Thresholds {
		return &clusterv3.CircuitBreakers_Thresholds{
			Priority:           priority,
			MaxConnections:     wrapperspb.UInt32(noLimit),
			MaxPendingRequests: wrapperspb.UInt32(noLimit),
			MaxRequests:        wrapperspb.UInt32(noLimit),
		}
	}
	cluster.CircuitBreakers = &clusterv3.CircuitBreakers{
		Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
			thresholds(corev3.RoutingPriority_DEFAULT), thresholds(corev3.RoutingPriority_HIGH),
		},
	}
	return cluster
}
