package translate

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// ConnectionRoute routes connections that are not parsed as HTTP. It represents one match of a
// VirtualService's tls or tcp routes, or all connections to a service.
type ConnectionRoute struct {
	ServerNames []string       // server names (SNI) in lower case; nil matches all
	Subnets     []netip.Prefix // subnets of the destination address; nil matches all
	Object      *object.Object // object that defines the route
	Field       string         // path of the field that defines the route, below spec

	proxy *tcpproxyv3.TcpProxy // TCP proxy, to which Filters adds the access log
	// with dynamic DNS: port to which connections are forwarded; 0: no dynamic DNS
	dynamicPort uint32
}

// Filters returns the filters that forward the connection.
func (c ConnectionRoute) Filters(t *Telemetry) ([]*listenerv3.Filter, error) {
	proxy := proto.Clone(c.proxy).(*tcpproxyv3.TcpProxy)
	proxy.AccessLog = t.loggers(ofConnections)
	var filters []*listenerv3.Filter
	if c.dynamicPort != 0 {
		resolver, err := resolveServerNames(c.dynamicPort)
		if err != nil {
			return nil, err
		}
		filters = append(filters, resolver)
	}
	forward, err := networkFilter("envoy.filters.network.tcp_proxy", proxy)
	return append(filters, forward), err
}

// FilterChain returns a filter chain that matches and forwards the connection.
func (c ConnectionRoute) FilterChain(name string, t *Telemetry) (*listenerv3.FilterChain, error) {
	filters, err := c.Filters(t)
	if err != nil {
		return nil, err
	}
	chain := &listenerv3.FilterChain{Name: name, Filters: filters}
	if len(c.ServerNames)+len(c.Subnets) == 0 {
		return chain, nil
	}
	chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: c.ServerNames}
	for _, subnet := range c.Subnets {
		chain.FilterChainMatch.PrefixRanges = append(chain.FilterChainMatch.PrefixRanges,
			&corev3.CidrRange{
				AddressPrefix: subnet.Addr().String(),
				PrefixLen:     wrapperspb.UInt32(uint32(subnet.Bits()))})
	}
	return chain, nil
}

// Equal reports whether two routes have the same Envoy configuration and origin.
func (c ConnectionRoute) Equal(d ConnectionRoute) bool {
	return slices.Equal(c.ServerNames, d.ServerNames) && slices.Equal(c.Subnets, d.Subnets) &&
		c.Object == d.Object && c.Field == d.Field && c.dynamicPort == d.dynamicPort &&
		proto.Equal(c.proxy, d.proxy)
}

// ConnectionRoutes describes how connections to a host and port are routed.
type ConnectionRoutes struct {
	Routes    []ConnectionRoute // routes in order: the first one that matches applies
	Problems  []object.Problem
	HostsRead []string // sorted hosts whose service or DestinationRule was read
}

// Equal reports whether c and d result in equal listeners.
func (c *ConnectionRoutes) Equal(d *ConnectionRoutes) bool {
	return c == d || c != nil && d != nil && slices.EqualFunc(c.Routes, d.Routes, ConnectionRoute.Equal)
}

// Origins returns the origins of the objects that define the routes.
func (c *ConnectionRoutes) Origins() []resource.Origin {
	var origins []resource.Origin
	for _, route := range c.Routes {
		origins = append(origins, route.Object.Origin())
	}
	return compact(origins)
}

// ServiceConnectionRoutes returns the routes of a sidecar for connections to a service port: those
// of VirtualServices that name the host, by precedence (tls routes for a TLS port, else tcp
// routes), then one to the service itself.
func (r *RouteTranslator) ServiceConnectionRoutes(service *model.Service, port *model.Port,
	routings []*model.MergedVirtualService) *ConnectionRoutes {
	r.begin()
	out := &ConnectionRoutes{}
	var everything *ConnectionRoute // first route that matches all connections, if any
	for _, routing := range routings {
		routes := r.TCPRoutes
		if port.Protocol == model.TLS {
			routes = r.TLSRoutes
		}
		for _, c := range routes(routing) {
			if everything != nil {
				r.problems = append(r.problems, claimed(c, *everything, service.Host))
				break
			}
			out.Routes = append(out.Routes, c)
			if port.Protocol != model.TLS && len(c.Subnets) == 0 {
				everything = &c
			}
		}
	}
	if everything == nil && (port.Protocol != model.TLS || len(out.Routes) == 0) {
		index := slices.IndexFunc(port.Entry.Ports, func(p *networking.ServicePort) bool {
			return p.Number == port.Number
		})
		route := ConnectionRoute{Object: port.Object, Field: fmt.Sprintf("ports[%d]", index),
			proxy: r.proxy(service, port.Number, "", ClusterName(port.Number, "", service.Host))}
		if port.Protocol == model.TLS && service.Host != "*" {
			route.ServerNames = []string{service.Host}
		}
		if port.IsDynamicDNS() {
			route.dynamicPort = port.Number
		}
		out.Routes = append(out.Routes, route)
	}
	out.Problems, out.HostsRead = r.TakeFindings()
	return out
}

// TLSRoutes returns the tls routes of a VirtualService that apply to the listener, one for each
// match, in order.
func (r *RouteTranslator) TLSRoutes(routing *model.MergedVirtualService) []ConnectionRoute {
	var out []ConnectionRoute
	for i, in := range routing.Spec.Tls {
		for j, match := range in.Match {
			field := fmt.Sprintf("tls[%d].match[%d]", i, j)
			if !r.appliesTo(routing, field, match) {
				continue
			}
			c := ConnectionRoute{Object: routing.Object, Field: fmt.Sprintf("tls[%d]", i),
				ServerNames: make([]string, len(match.SniHosts))}
			for k, name := range match.SniHosts {
				c.ServerNames[k] = strings.ToLower(name)
			}
			if slices.Contains(c.ServerNames, "*") {
				c.ServerNames = nil
			}
			if r.inMesh() {
				c.Subnets = subnets(match.DestinationSubnets)
			}
			r.dynamicPort = 0
			c.proxy = r.destinations(routing, in.Route, c.Field)
			c.dynamicPort = r.dynamicPort
			out = append(out, c)
		}
	}
	return out
}

// TCPRoutes returns the tcp routes of a VirtualService that apply to the listener, in order. It
// omits routes after one that matches all subnets, because they are unreachable.
func (r *RouteTranslator) TCPRoutes(routing *model.MergedVirtualService) []ConnectionRoute {
	var out []ConnectionRoute
	for i, in := range routing.Spec.Tcp {
		c := ConnectionRoute{Object: routing.Object, Field: fmt.Sprintf("tcp[%d]", i)}
		var blocks []string
		all, applies := len(in.Match) == 0, len(in.Match) == 0
		for j, match := range in.Match {
			if !r.appliesTo(routing, fmt.Sprintf("tcp[%d].match[%d]", i, j), match) {
				continue
			}
			applies = true
			if len(match.DestinationSubnets) == 0 || !r.inMesh() {
				all = true
				break
			}
			blocks = append(blocks, match.DestinationSubnets...)
		}
		if !applies {
			continue
		}
		if !all {
			c.Subnets = subnets(blocks)
		}
		c.proxy = r.destinations(routing, in.Route, c.Field)
		if out = append(out, c); all {
			break
		}
	}
	return out
}

// connectionMatch is the common interface of tls and tcp matches.
type connectionMatch interface {
	GetPort() uint32
	GetGateways() []string
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
	GetDestinationSubnets() []string
}

func (r *RouteTranslator) inMesh() bool { return slices.Contains(r.Gateways, model.MeshGateway) }

// appliesTo reports whether connections of the listener can satisfy a match. As in Istio, a gateway
// ignores source labels, source namespaces and destination subnets, and appliesTo reports them as
// problems.
func (r *RouteTranslator) appliesTo(routing *model.MergedVirtualService, field string,
	match connectionMatch) bool {
	if match.GetPort() != 0 && match.GetPort() != r.Port || !r.gatewaysMeet(match.GetGateways(),
		routing) {
		return false
	}
	if r.inMesh() {
		return model.SelectorMatches(match.GetSourceLabels(), r.Node.Labels) &&
			(match.GetSourceNamespace() == "" || match.GetSourceNamespace() == r.Node.Namespace)
	}
	for name, set := range map[string]bool{
		"destinationSubnets": len(match.GetDestinationSubnets()) > 0,
		"sourceLabels":       len(match.GetSourceLabels()) > 0,
		"sourceNamespace":    match.GetSourceNamespace() != ""} {
		if set {
			r.problems = append(r.problems, routing.Object.Warning(field+"."+name,
				"has no effect at a gateway",
				"remove it, or write mesh as the gateway of the match"))
		}
	}
	return true
}

// destinations returns a TCP proxy that forwards to one destination, or to several by weight.
func (r *RouteTranslator) destinations(routing *model.MergedVirtualService,
	routes []*networking.RouteDestination,
	field string) *tcpproxyv3.TcpProxy {
	var names []string
	var clusters []*tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight
	for i, to := range routes {
		if to.Weight == 0 && len(routes) > 1 {
			continue
		}
		name, _ := r.destination(routing.Object, to.Destination,
			fmt.Sprintf("%s.route[%d].destination", field, i))
		names = append(names, name)
		clusters = append(clusters, &tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{Name: name,
			Weight: uint32(max(to.Weight, 0))})
	}
	// as in Istio, the first destination's DestinationRule defines the idle timeout
	first := routes[0].Destination
	service := r.service(model.FullName(first.GetHost(), routing.Object.Namespace,
		r.Mesh.Domain()))
	if len(routes) == 1 {
		return r.proxy(service, r.portOf(service, first), first.GetSubset(), names[0])
	}
	out := r.proxy(service, r.portOf(service, first), "", "")
	out.StatPrefix = routing.Object.Name + "." + routing.Object.Namespace
	out.ClusterSpecifier = &tcpproxyv3.TcpProxy_WeightedClusters{
		WeightedClusters: &tcpproxyv3.TcpProxy_WeightedCluster{Clusters: clusters}}
	return out
}

// proxy returns a TCP proxy that forwards to a cluster of a service (nil: unknown), with the
// settings of the service's DestinationRule.
func (r *RouteTranslator) proxy(service *model.Service, port uint32, subset,
	cluster string) *tcpproxyv3.TcpProxy {
	out := &tcpproxyv3.TcpProxy{StatPrefix: cluster, ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{
		Cluster: cluster}}
	if service == nil {
		return out
	}
	rule := r.Mesh.DestinationRule(service, r.Node)
	p := policyFor(rule, port, subset)
	out.IdleTimeout, out.MaxDownstreamConnectionDuration = p.pool.GetTcp().GetIdleTimeout(),
		p.pool.GetTcp().GetMaxConnectionDuration()
	if tunnel := tunnelOf(rule, subset); tunnel != nil {
		out.TunnelingConfig = &tcpproxyv3.TcpProxy_TunnelingConfig{
			UsePost: tunnel.Protocol == "POST",
			Hostname: net.JoinHostPort(tunnel.TargetHost,
				strconv.FormatUint(uint64(tunnel.TargetPort), 10))}
	}
	if p.loadBalancer.GetConsistentHash().GetUseSourceIp() {
		out.HashPolicy = []*typev3.HashPolicy{
			{PolicySpecifier: &typev3.HashPolicy_SourceIp_{
				SourceIp: &typev3.HashPolicy_SourceIp{}}}}
	}
	return out
}

// subnets parses valid addresses and CIDR blocks, and returns them sorted without duplicates.
func subnets(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			out = append(out, netip.PrefixFrom(address, address.BitLen()))
		} else if block, err := netip.ParsePrefix(text); err == nil {
			out = append(out, block.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}
