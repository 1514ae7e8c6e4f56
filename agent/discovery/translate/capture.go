package translate

import (
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// Istio's names of the listeners and clusters that every proxy with interception has.
const (
	PassthroughCluster        = "PassthroughCluster"
	InboundPassthroughCluster = "InboundPassthroughCluster"
	BlackHoleCluster          = "BlackHoleCluster"
	virtualOutbound           = "virtualOutbound"
	virtualInbound            = "virtualInbound"
)

// originalSourceMark marks packets that Envoy sends to applications with the client's source
// address, so that policy routing returns the replies to Envoy. The value is Istio's.
const originalSourceMark = 1337

// UnknownDestinationClusters returns the clusters for connections to unknown destinations: one
// forwards to the original destination, one is a black hole.
func UnknownDestinationClusters(m *mesh.Config, node model.Node) ([]*resource.Resource, error) {
	outbound := &clusterv3.Cluster{Name: PassthroughCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED}
	inbound := &clusterv3.Cluster{Name: InboundPassthroughCluster}
	toOriginalDestination(inbound, node)
	nowhere := &clusterv3.Cluster{Name: BlackHoleCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}
	var out []*resource.Resource
	for _, c := range []*clusterv3.Cluster{outbound, inbound, nowhere} {
		c.ConnectTimeout = durationpb.New(m.ConnectTimeout)
		c.AltStatName = mesh.DelimitedStatName(c.Name)
		if node.RecordsMetrics && c != inbound {
			c.Metadata = serviceLabels("", c.Name)
		}
		if c != nowhere {
			d := &draft{Cluster: c, mesh: m, protocol: model.AutoProtocol}
			d.applyPool()
			c = d.finish()
		}
		r, err := resource.New(c.Name, c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// VirtualOutbound returns the listener that receives captured outbound connections. It hands each
// connection over to the listener with the original address and port; without one, it forwards to
// the cluster fallback. With resolve set, HTTP requests without such a listener go to the addresses
// of their host instead.
func VirtualOutbound(m *mesh.Config, node model.Node, fallback string,
	metrics *Metrics, t *Telemetry, resolve bool) (*resource.Resource, error) {
	loop, err := blackHole(&Telemetry{}, virtualOutbound+"-blackhole", m.OutboundPort)
	if err != nil {
		return nil, err
	}
	rest, err := passOn(t, fallback)
	if err != nil {
		return nil, err
	}
	catchall := &listenerv3.FilterChain{Name: virtualOutbound + "-catchall-tcp",
		Filters: []*listenerv3.Filter{rest}}
	if err := metrics.addTo(catchall, stream{}); err != nil {
		return nil, err
	}
	l := newListener(anyIPv4, m.OutboundPort, loop, catchall)
	if resolve {
		requests, err := captureUnknown(m, t)
		if err == nil {
			err = metrics.addTo(requests, stream{})
		}
		if err != nil {
			return nil, err
		}
		l.FilterChains = append(l.FilterChains, requests)
		detectRequests(l, m)
	}
	l.Name = virtualOutbound
	l.UseOriginalDst = wrapperspb.Bool(true)
	l.Transparent = transparent(node)
	if node.IPv6 {
		dualStack(l, m.OutboundPort)
	}
	t.unmatched(l)
	return resource.New(l.Name, l, t.Origins...)
}

// VirtualInbound returns the listener that receives captured inbound connections. ports are the
// ports that services declare. policy and guards have the modes of mutual TLS and the filters of
// all undeclared ports.
func VirtualInbound(m *mesh.Config, node model.Node, ports []InboundListener,
	policy model.EffectivePeerAuthentication,
	guards SecurityFilters, metrics *Metrics, t *Telemetry, origins ...resource.Origin) (*resource.Resource, error) {
	loop, err := blackHole(&Telemetry{}, virtualInbound+"-blackhole", m.InboundPort)
	if err != nil {
		return nil, err
	}
	l := newListener(anyIPv4, m.InboundPort, loop)
	for _, in := range append(undeclared(node, ports, policy, guards, t), ports...) {
		in.Metrics = metrics
		chains, err := in.chains(m, true)
		if err != nil {
			return nil, err
		}
		l.FilterChains = append(l.FilterChains, chains...)
	}
	l.Name = virtualInbound
	l.TrafficDirection = corev3.TrafficDirection_INBOUND
	l.Transparent = transparent(node)
	if node.IPv6 {
		dualStack(l, m.InboundPort)
	}
	l.ListenerFilters = append(l.ListenerFilters, listenerFilter("original_dst",
		&originaldstv3.OriginalDst{}))
	if node.Interception == model.Tproxy {
		l.ListenerFilters = append(l.ListenerFilters, listenerFilter("original_src",
			&originalsrcv3.OriginalSrc{Mark: originalSourceMark}))
	}
	inspect(l, m)
	t.unmatched(l)
	return resource.New(l.Name, l, append(origins, t.Origins...)...)
}

// undeclared returns the InboundListeners for ports that no service declares: one for each port
// with its own mode of mutual TLS, and one for all others.
func undeclared(node model.Node, ports []InboundListener, policy model.EffectivePeerAuthentication,
	guards SecurityFilters, t *Telemetry) []InboundListener {
	all := []InboundListener{{PortUndeclared: true, Protocol: model.AutoProtocol,
		HasMeshIdentity: node.Identity,
		MutualTLSMode:   policy.Default.Mode, SecurityFilters: guards, Telemetry: *t}}
	for _, port := range slices.Sorted(maps.Keys(policy.Ports)) {
		if !slices.ContainsFunc(ports, func(in InboundListener) bool { return in.Port == port }) {
			in := all[0]
			in.Port, in.MutualTLSMode = port, policy.Ports[port].Mode
			all = append(all, in)
		}
	}
	return all
}

// transparent returns the listener field transparent, which lets a TPROXY listener accept
// connections to foreign addresses.
func transparent(node model.Node) *wrapperspb.BoolValue {
	if node.Interception != model.Tproxy {
		return nil
	}
	return wrapperspb.Bool(true)
}

// blackHole returns a filter chain that closes connections to a port (0: any), such as the capture
// port itself, to which connections would loop. The closed connections are not logged as backend
// failures.
func blackHole(t *Telemetry, name string, port uint32) (*listenerv3.FilterChain, error) {
	filter, err := passOn(&Telemetry{AccessLogs: t.AccessLogs}, BlackHoleCluster)
	if err != nil {
		return nil, err
	}
	return &listenerv3.FilterChain{Name: name, FilterChainMatch: accepted{}.match(port),
		Filters: []*listenerv3.Filter{filter}}, nil
}

// passOn returns a TCP proxy filter that forwards connections to a cluster.
func passOn(t *Telemetry, cluster string) (*listenerv3.Filter, error) {
	return networkFilter("envoy.filters.network.tcp_proxy",
		&tcpproxyv3.TcpProxy{StatPrefix: cluster, AccessLog: t.loggers(ofConnections),
			ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster}})
}

// inspect adds the listener filters that the filter chain matches need. It disables them for ports
// whose filter chains need none: with server-first protocols, they would wait for bytes of the
// client.
func inspect(l *listenerv3.Listener, m *mesh.Config) {
	add := func(name string, config proto.Message, needs func(*listenerv3.FilterChainMatch) bool) {
		// whether an inspector is needed, by port; 0: all ports
		ports := map[uint32]bool{}
		for _, c := range l.FilterChains {
			port := c.GetFilterChainMatch().GetDestinationPort().GetValue()
			ports[port] = ports[port] || needs(c.GetFilterChainMatch())
		}
		var exempt []uint32
		for _, port := range slices.Sorted(maps.Keys(ports)) {
			if port != 0 && !ports[port] {
				exempt = append(exempt, port)
			}
		}
		if slices.Contains(slices.Collect(maps.Values(ports)), true) {
			filter := listenerFilter(name, config)
			filter.FilterDisabled = anyOf(exempt)
			l.ListenerFilters = append(l.ListenerFilters, filter)
		}
	}
	add("tls_inspector", &tlsinspectorv3.TlsInspector{},
		func(match *listenerv3.FilterChainMatch) bool {
			return match.GetTransportProtocol() != "" || len(match.GetServerNames()) > 0
		})
	add("http_inspector", &httpinspectorv3.HttpInspector{},
		func(match *listenerv3.FilterChainMatch) bool {
			return slices.ContainsFunc(match.GetApplicationProtocols(), func(p string) bool {
				return slices.Contains(plainHTTP, p)
			})
		})
	if len(l.ListenerFilters) > 0 {
		detection(l, m.ProtocolDetectionTimeout)
	}
}

func listenerFilter(name string, config proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: "envoy.filters.listener." + name,
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: typed(config)}}
}

// anyOf returns a predicate that matches connections to any of the ports; nil if there are no
// ports.
func anyOf(ports []uint32) *listenerv3.ListenerFilterChainMatchPredicate {
	rules := make([]*listenerv3.ListenerFilterChainMatchPredicate, 0, len(ports))
	for _, port := range ports {
		rules = append(rules, &listenerv3.ListenerFilterChainMatchPredicate{
			Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
				DestinationPortRange: &typev3.Int32Range{Start: int32(port),
					End: int32(port) + 1}}})
	}
	switch len(rules) {
	case 0:
		return nil
	case 1:
		return rules[0]
	}
	return &listenerv3.ListenerFilterChainMatchPredicate{
		Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
			OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules}}}
}
