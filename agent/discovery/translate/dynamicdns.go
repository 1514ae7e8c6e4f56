package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dnscachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	httpdfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	snidfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/resource"
)

// Dynamic DNS resolves the host of a request, or the SNI of a connection, when it arrives. All
// clusters and filters share one DNS cache, because a listener's filter fills the cache for every
// cluster to which the listener may forward.
const (
	// dnsCacheName needs another value if a setting in dnsCache changes after a release: an Envoy
	// that runs during an upgrade refuses a cache of the same name with other settings.
	dnsCacheName     = "dynamic_dns"
	maxResolvedHosts = 1024 // Istio's limit of ALLOW_ANY_DYNAMIC_DNS
)

// Istio's names of the cluster for requests to unknown hosts, and of their route.
const (
	dynamicDNSCluster = "AllowAnyDynamicDNSCluster"
	dynamicDNSRoute   = "allow_any_dynamic_dns"
)

// DynamicDNSClusters returns the cluster for requests to unknown hosts.
func DynamicDNSClusters(m *mesh.Config, node model.Node) Clusters {
	out := Clusters{mesh: m, node: node}
	d := &draft{Cluster: &clusterv3.Cluster{Name: dynamicDNSCluster}, mesh: m,
		protocol: model.AutoProtocol, policy: policy{tls: m.UnknownHostTLS}}
	d.applyPool()
	d.applyTLS(nil, "")
	d.resolveDynamically()
	out.Secrets = map[ConfiguredSecret][]resource.Origin{}
	for _, secret := range d.secrets {
		// no origins: MeshConfig, which requires the secret, is not an object
		out.Secrets[secret] = nil
	}
	r, err := resource.New(d.Name, d.finish())
	if err != nil {
		out.Problems = append(out.Problems, object.Problem{Severity: condition.Error,
			Message: "cannot build the cluster for unknown hosts: " + err.Error()})
		return out
	}
	out.Resources = append(out.Resources, r)
	return out
}

// DynamicDNSHost returns the virtual host that forwards requests to unknown hosts to the addresses
// of the host.
func DynamicDNSHost() *routev3.VirtualHost {
	host := AllowAnyHost(dynamicDNSCluster)
	host.Name, host.Routes[0].Name = dynamicDNSRoute, dynamicDNSRoute
	return host
}

// captureUnknown returns the filter chain for captured requests to unknown hosts at addresses
// without a listener.
func captureUnknown(m *mesh.Config, t *Telemetry) (*listenerv3.FilterChain, error) {
	manager := newManager("outbound_"+virtualOutbound+"_"+dynamicDNSRoute, m, t)
	resolveRequests(manager)
	manager.ServerHeaderTransformation = hcmv3.HttpConnectionManager_PASS_THROUGH
	filter, err := withRoutes(manager, &routev3.RouteConfiguration{Name: dynamicDNSRoute,
		ValidateClusters: wrapperspb.Bool(false), IgnorePortInHostMatching: true,
		VirtualHosts: []*routev3.VirtualHost{DynamicDNSHost()}})
	return &listenerv3.FilterChain{Name: virtualOutbound + "-catchall-http",
		FilterChainMatch: &listenerv3.FilterChainMatch{ApplicationProtocols: plainHTTP},
		Filters:          []*listenerv3.Filter{filter}}, err
}

// detectRequests makes the listener of all captured connections detect HTTP, before it hands
// connections over to the listeners of their addresses. The wait for the client's first bytes is
// bounded, because with server-first protocols none arrive; istiod closes such connections after 15
// seconds.
func detectRequests(l *listenerv3.Listener, m *mesh.Config) {
	// A filter for the original destination precedes the inspectors, although the listener has one
	// after them: if an inspector times out, Envoy skips all filters that follow it.
	l.ListenerFilters = append(l.ListenerFilters,
		listenerFilter("original_dst", &originaldstv3.OriginalDst{}),
		listenerFilter("http_inspector", &httpinspectorv3.HttpInspector{}))
	detection(l, cmp.Or(m.ProtocolDetectionTimeout, firstBytes))
}

// firstBytes is how long a captured connection waits for the client's first bytes, unless
// MeshConfig sets protocolDetectionTimeout.
const firstBytes = 100 * time.Millisecond

// ownAddresses are addresses that lead to this host itself. A resolved host with such an address
// could be an admin interface, or a listener of this Envoy, which would forward the request to
// itself in an endless loop. IPv4-mapped IPv6 addresses are listed separately, because Envoy
// compares them only with IPv6 ranges. NAT64 addresses (RFC 6052) for both IPv4 ranges lead to the
// NAT64 translator itself.
var ownAddresses = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("::/127"),
	netip.MustParsePrefix("::ffff:127.0.0.0/104"), netip.MustParsePrefix("::ffff:0.0.0.0/104"),
	netip.MustParsePrefix("64:ff9b::7f00:0/104"), netip.MustParsePrefix("64:ff9b::/104"),
}

// dnsCache returns the settings of the cache. Envoy may connect to any address of a resolved host,
// so the cache drops ownAddresses. A host that has no other addresses cannot be resolved.
func dnsCache() *dnscachev3.DnsCacheConfig {
	dropped := &matcherv3.AddressMatcher{}
	for _, block := range ownAddresses {
		dropped.Ranges = append(dropped.Ranges, &xdscorev3.CidrRange{
			AddressPrefix: block.Addr().String(),
			PrefixLen:     wrapperspb.UInt32(uint32(block.Bits()))})
	}
	return &dnscachev3.DnsCacheConfig{Name: dnsCacheName,
		DnsLookupFamily:       clusterv3.Cluster_V4_PREFERRED,
		MaxHosts:              wrapperspb.UInt32(maxResolvedHosts),
		ResolvedAddressFilter: dropped}
}

// resolveDynamically makes the cluster forward to the host of each request, or the SNI of each
// connection. The SNI of the new connection is the host, unless the policy sets another. As in
// Istio, certificates must contain the host even if the policy expects other names.
func (d *draft) resolveDynamically() {
	if tls := d.policy.tls; tls != nil && tls.Mode != networking.ClientTLSSettings_DISABLE &&
		!tls.GetInsecureSkipVerify().GetValue() {
		d.options().UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{
			AutoSni: tls.Sni == "", AutoSanValidation: true}
	}
	checked := d.http.GetUpstreamHttpProtocolOptions()
	d.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{
		ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.clusters.dynamic_forward_proxy",
			TypedConfig: typed(&dfpclusterv3.ClusterConfig{
				ClusterImplementationSpecifier: &dfpclusterv3.ClusterConfig_DnsCacheConfig{
					DnsCacheConfig: dnsCache()},
				AllowInsecureClusterOptions: !checked.GetAutoSni() ||
					!checked.GetAutoSanValidation()})}}
	d.LbPolicy, d.LbConfig = clusterv3.Cluster_CLUSTER_PROVIDED, nil
}

// resolveRequests adds the filter that resolves the hosts of requests to a connection manager.
func resolveRequests(manager *hcmv3.HttpConnectionManager) {
	last := len(manager.HttpFilters) - 1
	router := manager.HttpFilters[last]
	manager.HttpFilters = append(manager.HttpFilters[:last:last],
		httpFilter(rbac.HTTPResolverFilter, &httpdfpv3.FilterConfig{
			ImplementationSpecifier: &httpdfpv3.FilterConfig_DnsCacheConfig{
				DnsCacheConfig: dnsCache()}}), router)
}

// resolveServerNames returns the filter that resolves the server names of connections; it precedes
// the one that forwards.
func resolveServerNames(port uint32) (*listenerv3.Filter, error) {
	return networkFilter(rbac.SNIResolverFilter, &snidfpv3.FilterConfig{DnsCacheConfig: dnsCache(),
		PortSpecifier: &snidfpv3.FilterConfig_PortValue{PortValue: port}})
}

// resolvesHost completes a route to a cluster with dynamic DNS. Envoy forwards to the port in the
// request's host, so the route is restricted to hosts with the listener's port; for port 80 also to
// hosts without a port.
func resolvesHost(route *routev3.Route, port uint32) {
	expression := fmt.Sprintf("[^:]*:%d", port)
	if port == 80 {
		expression = "[^:]*(:80)?"
	}
	route.Match.Headers = append(route.Match.Headers, &routev3.HeaderMatcher{Name: ":authority",
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
			StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex(expression)}}}})
}
