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

// Names of the listeners, and of their statistics: who counts an epoch's connections leaves these out.
const (
	PrometheusListener = "outrider_prometheus"
	ReadyListener      = "outrider_ready"
)

// prometheusListener answers with the metrics of the epoch that holds it, from its own admin socket.
func (b *builder) prometheusListener() *listenerv3.Listener {
	address, err := b.listenAddress(b.in.Prometheus)
	if err != nil {
		b.fail("address of the Prometheus listener: %w", err)
		return nil
	}
	return b.forwardingListener(PrometheusListener, address, "/stats/prometheus", prometheusCluster)
}

// readyListener answers as the agent does, and only while Envoy takes traffic.
func (b *builder) readyListener() *listenerv3.Listener {
	if b.in.Ready.Port < 1 || b.in.Ready.Port > 65535 {
		b.fail("port %d of the readiness listener is not from 1 to 65535", b.in.Ready.Port)
	}
	return b.forwardingListener(ReadyListener, b.wildcard(uint16(b.in.Ready.Port)), "/healthz/ready", agentCluster)
}

// forwardingListener passes GET and HEAD of one path on to a cluster, and nothing else: behind one of them is the admin
// interface, which would itself resolve a /stats/prometheus/../../quitquitquit that a prefix lets through.
//
// It shares its port with the listener of another epoch (SO_REUSEPORT) and does not count against a limit of
// connections: a full proxy must still tell that it is one.
func (b *builder) forwardingListener(name string, address *corev3.Address, path, cluster string) *listenerv3.Listener {
	manager := &managerv3.HttpConnectionManager{
		StatPrefix: name,
		RouteSpecifier: &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: name,
			VirtualHosts: []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{
					PathSpecifier: &routev3.RouteMatch_Path{Path: path},
					Headers:       []*routev3.HeaderMatcher{oneOf(":method", "GET|HEAD")},
				},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
				}},
			}}}},
		}},
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
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: expression}},
		}},
	}
}
