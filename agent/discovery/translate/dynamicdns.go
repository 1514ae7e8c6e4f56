package translate

import (
	"cmp"
	"fmt"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dnscachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	httpdfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	snidfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	upstreamipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/matchers/upstream_ip_port/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
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
	out.Secrets = map[FileSecret][]resource.Origin{}
	for _, secret := range d.secrets {
		out.Secrets[secret] = nil // MeshConfig is not an object
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
	denyLoopback(host.Routes[0])
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
	// First the filter for the original destination: the listener's own one comes last, and is
	// skipped after the timeout of the others.
	l.ListenerFilters = append(l.ListenerFilters,
		listenerFilter("original_dst", &originaldstv3.OriginalDst{}),
		listenerFilter("http_inspector", &httpinspectorv3.HttpInspector{}))
	detection(l, cmp.Or(m.ProtocolDetection, firstBytes))
}

// firstBytes is how long a captured connection waits for the client's first bytes.
const firstBytes = 100 * time.Millisecond

func dnsCache() *dnscachev3.DnsCacheConfig {
	return &dnscachev3.DnsCacheConfig{Name: dnsCacheName,
		DnsLookupFamily: clusterv3.Cluster_V4_PREFERRED,
		MaxHosts:        wrapperspb.UInt32(maxResolvedHosts)}
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

// resolveRequests adds the filters that resolve the hosts of requests to a connection manager.
func resolveRequests(manager *hcmv3.HttpConnectionManager) {
	last := len(manager.HttpFilters) - 1
	router := manager.HttpFilters[last]
	manager.HttpFilters = append(manager.HttpFilters[:last:last],
		httpFilter(rbac.ResolverFilter, &httpdfpv3.FilterConfig{SaveUpstreamAddress: true,
			ImplementationSpecifier: &httpdfpv3.FilterConfig_DnsCacheConfig{
				DnsCacheConfig: dnsCache()}}),
		// each route to a cluster with dynamic DNS has its own rules; see resolvesHost
		httpFilter(rbac.LoopbackFilter, &httprbacv3.RBAC{}), router)
}

// resolveServerNames returns the filters that resolve the server names of connections; they precede
// the one that forwards.
func resolveServerNames(port uint32) ([]*listenerv3.Filter, error) {
	resolver, err := networkFilter(rbac.NameResolverFilter, &snidfpv3.FilterConfig{
		DnsCacheConfig: dnsCache(), SaveUpstreamAddress: true,
		PortSpecifier: &snidfpv3.FilterConfig_PortValue{PortValue: port}})
	if err != nil {
		return nil, err
	}
	guard, err := networkFilter(rbac.LoopbackFilter, &networkrbacv3.RBAC{Rules: notLoopback(),
		StatPrefix: rbac.LoopbackFilter})
	return []*listenerv3.Filter{resolver, guard}, err
}

// notLoopback denies connections to a host that was resolved to a loopback address. That could be a
// listener of this Envoy, which would cause an endless loop, or an admin interface.
func notLoopback() *rbacv3.RBAC {
	policy := &rbacv3.Policy{Principals: []*rbacv3.Principal{
		{Identifier: &rbacv3.Principal_Any{Any: true}}}}
	for _, block := range []*corev3.CidrRange{
		{AddressPrefix: "127.0.0.0", PrefixLen: wrapperspb.UInt32(8)},
		{AddressPrefix: "0.0.0.0", PrefixLen: wrapperspb.UInt32(8)},
		{AddressPrefix: "::", PrefixLen: wrapperspb.UInt32(127)},
		{AddressPrefix: "::ffff:127.0.0.0", PrefixLen: wrapperspb.UInt32(104)},
		{AddressPrefix: "::ffff:0.0.0.0", PrefixLen: wrapperspb.UInt32(104)},
	} {
		policy.Permissions = append(policy.Permissions, &rbacv3.Permission{
			Rule: &rbacv3.Permission_Matcher{Matcher: &corev3.TypedExtensionConfig{
				Name: "envoy.rbac.matchers.upstream_ip_port",
				TypedConfig: typed(&upstreamipv3.UpstreamIpPortMatcher{
					UpstreamIp: block})}}})
	}
	return &rbacv3.RBAC{Action: rbacv3.RBAC_DENY,
		Policies: map[string]*rbacv3.Policy{"loopback": policy}}
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
	denyLoopback(route)
}

// denyLoopback denies the requests of a route that were resolved to an address of the loopback.
func denyLoopback(route *routev3.Route) {
	if route.TypedPerFilterConfig == nil {
		route.TypedPerFilterConfig = map[string]*anypb.Any{}
	}
	route.TypedPerFilterConfig[rbac.LoopbackFilter] = typed(&httprbacv3.RBACPerRoute{
		Rbac: &httprbacv3.RBAC{Rules: notLoopback()}})
}
