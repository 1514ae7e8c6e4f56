package render

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Names of Outrider's own listeners, also in their statistics. These listeners are excluded when
// the connections of an epoch are counted.
const (
	prometheusListener = "outrider_prometheus"
	ReadyListener      = "outrider_ready"
)

// prometheusListener serves the metrics of the same epoch, from its own admin socket.
func (b *builder) prometheusListener() *listenerv3.Listener {
	address, err := b.listenAddress(b.in.Prometheus)
	if err != nil {
		b.fail("address of the Prometheus listener: %w", err)
		return nil
	}
	const path = "/stats/prometheus"
	return b.forwardingListener(prometheusListener, address, path, adminCluster, path)
}

// readyListener forwards /healthz/ready to the status server of the agent, or to the admin
// interface of the same Envoy if there is no status server.
func (b *builder) readyListener() *listenerv3.Listener {
	address, err := b.listenAddress(b.in.Ready.Address)
	if err != nil {
		b.fail("address of the readiness listener: %w", err)
		return nil
	}
	const path = "/healthz/ready"
	if b.in.Ready.Backend == "" {
		return b.forwardingListener(ReadyListener, address, path, adminCluster, "/ready")
	}
	return b.forwardingListener(ReadyListener, address, path, agentCluster, path)
}

// forwardingListener forwards only GET and HEAD of one exact path. With a prefix the admin
// interface would resolve /stats/prometheus/../../quitquitquit.
//
// Epochs share the port (SO_REUSEPORT). Connection limits do not apply, so that a full proxy can
// report its state.
func (b *builder) forwardingListener(name string, address *corev3.Address, path, cluster,
	target string) *listenerv3.Listener {
	rewrite := "" // as the route matches the exact path, the "prefix" is the whole path
	if target != path {
		rewrite = target
	}
	route := &routev3.Route{
		Match: &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Path{Path: path},
			Headers:       []*routev3.HeaderMatcher{oneOf(":method", "GET|HEAD")},
		},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			PrefixRewrite:    rewrite,
		}},
	}
	routes := &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{
		{Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{route}},
	}}
	manager := &managerv3.HttpConnectionManager{
		StatPrefix:     name,
		RouteSpecifier: &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: routes},
		HttpFilters: []*managerv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: b.pack(&routerv3.Router{})},
		}},
	}
	return &listenerv3.Listener{
		Name:       name,
		StatPrefix: name,
		Address:    address,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: b.pack(manager)},
		}}}},
		EnableReusePort:       wrapperspb.Bool(true),
		IgnoreGlobalConnLimit: true,
		BypassOverloadManager: true,
	}
}

func oneOf(header, expression string) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{
		Name: header,
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
			StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_SafeRegex{
					SafeRegex: &matcherv3.RegexMatcher{Regex: expression}},
			},
		},
	}
}
