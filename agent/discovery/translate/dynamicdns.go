package translate

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dnscachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	httpdfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	snidfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	upstreamipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/matchers/upstream_ip_port/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/discovery/rbac"
)

// Dynamic DNS resolves the host of a request, or the server name of a connection, when it arrives.
// Clusters and filters share one cache of hosts, because filters fill the caches of all clusters
// that a listener may forward to.
const (
	dnsCacheName     = "dynamic_dns"
	maxResolvedHosts = 1024 // Istio's limit of ALLOW_ANY_DYNAMIC_DNS
)

func dnsCache() *dnscachev3.DnsCacheConfig {
	return &dnscachev3.DnsCacheConfig{Name: dnsCacheName,
		DnsLookupFamily: clusterv3.Cluster_V4_PREFERRED,
		MaxHosts:        wrapperspb.UInt32(maxResolvedHosts)}
}

// resolveDynamically makes the cluster forward to the host of each request or connection. The
// server name and the expected name of TLS are the host, unless the policy has others.
func (d *draft) resolveDynamically() {
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

// nameByHost makes the server name and the expected name of TLS the host of each request.
func (d *draft) nameByHost() {
	d.options().UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{AutoSni: true,
		AutoSanValidation: len(d.policy.tls.GetSubjectAltNames()) == 0}
}

// resolveRequests adds the filters that resolve the hosts of requests to a connection manager.
func resolveRequests(manager *hcmv3.HttpConnectionManager) {
	last := len(manager.HttpFilters) - 1
	router := manager.HttpFilters[last]
	manager.HttpFilters = append(manager.HttpFilters[:last:last],
		httpFilter(rbac.ResolverFilter, &httpdfpv3.FilterConfig{SaveUpstreamAddress: true,
			ImplementationSpecifier: &httpdfpv3.FilterConfig_DnsCacheConfig{
				DnsCacheConfig: dnsCache()}}),
		// each route to such a cluster has rules of its own: see resolvesHost
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

// notLoopback denies what was resolved to an address of the loopback: it could be a listener of
// this Envoy, so that one request would be forwarded without end, or an admin interface.
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

// resolvesHost completes a route to a cluster with dynamic DNS. Requests are forwarded to the port
// that their host names, so the route is restricted to hosts with the listener's port, or without
// one if that is 80.
func resolvesHost(route *routev3.Route, port uint32) {
	expression := fmt.Sprintf("[^:]*:%d", port)
	if port == 80 {
		expression = "[^:]*(:80)?"
	}
	route.Match.Headers = append(route.Match.Headers, &routev3.HeaderMatcher{Name: ":authority",
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
			StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex(expression)}}}})
	if route.TypedPerFilterConfig == nil {
		route.TypedPerFilterConfig = map[string]*anypb.Any{}
	}
	route.TypedPerFilterConfig[rbac.LoopbackFilter] = typed(&httprbacv3.RBACPerRoute{
		Rbac: &httprbacv3.RBAC{Rules: notLoopback()}})
}
