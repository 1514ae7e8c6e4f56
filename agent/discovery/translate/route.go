package translate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// RouteTranslator translates VirtualServices for one port of a listener. It records the hosts that
// it looks up.
type RouteTranslator struct {
	Mesh *model.Mesh
	Node model.Node
	// gateways of the listener: model.MeshGateway, or the "namespace/name" of each Gateway
	Gateways []string
	Port     uint32 // port of the listener for which routes are translated
	TLS      bool   // requests arrive over TLS on this listener
	// the listener routes requests to several ports, so domains contain the port; for port 80,
	// there is also a domain without it
	DomainsWithPorts bool

	// VisibleService returns the visible service of a destination's host; nil: model.Mesh.Service
	// is used
	VisibleService func(host string) *model.Service
	// ServiceOnSameListener returns the service of another host with routes on the same listener;
	// nil for gateways
	ServiceOnSameListener func(host string) *model.Service
	// HasOwnVirtualService reports whether a VirtualService for the listener's requests names the
	// host itself, not only a pattern; nil for gateways
	HasOwnVirtualService func(host string) bool

	reads    map[string]struct{}
	problems []object.Problem
	// port of the last translated destination if that uses dynamic DNS; callers set it to 0 before
	// they translate destinations
	dynamicPort uint32
}

func (r *RouteTranslator) begin() { r.reads, r.problems = map[string]struct{}{}, nil }

// TakeFindings returns the problems that translation found, and the sorted hosts whose service or
// DestinationRule was read. It clears both.
func (r *RouteTranslator) TakeFindings() (problems []object.Problem, hostsRead []string) {
	problems, hostsRead = r.problems, slices.Sorted(maps.Keys(r.reads))
	r.begin()
	return problems, hostsRead
}

// service returns the service of a host, and records that the host was read.
func (r *RouteTranslator) service(host string) *model.Service {
	if r.reads == nil {
		r.reads = map[string]struct{}{}
	}
	r.reads[host] = struct{}{}
	if r.VisibleService != nil {
		return r.VisibleService(host)
	}
	return r.Mesh.Service(host, r.Node.Namespace)
}

// routes translates the routes of a VirtualService that apply to the listener, in order.
func (r *RouteTranslator) routes(routing *model.MergedVirtualService) []ownRoute {
	r.problems = append(r.problems, routing.Problems...)
	var out []ownRoute
	for _, in := range routing.HTTP {
		field := fmt.Sprintf("http[%d]", in.Index)
		if len(in.Match) == 0 {
			// this route matches all requests, so later ones are unreachable
			return append(out, ownRoute{r.route(routing, in, nil), in.Object, in.Index, field})
		}
		for i, match := range in.Match {
			if !r.applies(match, routing) {
				continue
			}
			route := ownRoute{r.route(routing, in, match), in.Object, in.Index, field}
			if len(in.Match) > 1 {
				route.field += fmt.Sprintf(".match[%d]", i)
			}
			out = append(out, route)
			if isEverything(route.Match) {
				return out
			}
		}
	}
	return out
}

// applies reports whether requests of the listener can satisfy a match. As in Istio, a match with
// gateways ignores labels and namespace of the client.
func (r *RouteTranslator) applies(match *networking.HTTPMatchRequest,
	routing *model.MergedVirtualService) bool {
	switch {
	case match.Port != 0 && match.Port != r.Port:
		return false
	case len(match.Gateways) > 0:
		return r.gatewaysMeet(match.Gateways, routing)
	}
	return model.SelectorMatches(match.SourceLabels, r.Node.Labels) && (match.SourceNamespace == "" ||
		match.SourceNamespace == r.Node.Namespace)
}

// gatewaysMeet reports whether a match with the given gateways applies to the listener. A match
// without gateways applies to all listeners.
func (r *RouteTranslator) gatewaysMeet(names []string, routing *model.MergedVirtualService) bool {
	return len(names) == 0 || slices.ContainsFunc(names, func(name string) bool {
		return slices.Contains(r.Gateways, model.GatewayName(name, routing.Object.Namespace))
	})
}

func (r *RouteTranslator) route(of *model.MergedVirtualService, in model.HTTPRoute,
	match *networking.HTTPMatchRequest) *routev3.Route {
	out := &routev3.Route{Name: in.Name, Match: requestMatch(match),
		StatPrefix: match.GetStatPrefix()}
	if match.GetName() != "" {
		out.Name = in.Name + "." + match.Name
	}
	changeHeaders(out, in.Headers)
	switch {
	case in.Redirect != nil:
		out.Action = r.redirect(in.Redirect)
	case in.DirectResponse != nil:
		out.Action = directResponse(in.DirectResponse)
	default:
		r.forward(out, in)
	}
	out.Decorator = &routev3.Decorator{Operation: r.operation(of, out)}
	filterConfigs(out, in.HTTPRoute)
	return out
}

// operation returns Istio's name of the spans of a route: the host and port of the only
// destination, or the name of the VirtualService if there are several, followed by the path of the
// match.
func (r *RouteTranslator) operation(of *model.MergedVirtualService, route *routev3.Route) string {
	path := route.Match.GetPrefix() + "*"
	switch specifier := route.Match.PathSpecifier.(type) {
	case *routev3.RouteMatch_Path:
		path = specifier.Path
	case *routev3.RouteMatch_SafeRegex:
		path = specifier.SafeRegex.Regex
	}
	if parts := strings.Split(route.GetRoute().GetCluster(), "|"); len(parts) == 4 {
		return parts[3] + ":" + parts[1] + path // see ClusterName
	}
	return fmt.Sprintf("%s:%d%s", of.Object.Name, r.Port, path)
}

// defaultRoute returns a route of all requests to the service of a host.
func (r *RouteTranslator) defaultRoute(host string,
	hash []*routev3.RouteAction_HashPolicy) *routev3.Route {
	return &routev3.Route{Name: "default", Match: everything(),
		Decorator: &routev3.Decorator{Operation: SpanName(host, r.Port)}, Action: &routev3.Route_Route{
			Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: ClusterName(r.Port, "", host)},
				Timeout:          durationpb.New(0),
				RetryPolicy:      r.retryPolicy(nil, false), HashPolicy: hash}}}
}

// hashPolicy returns the hash policy of requests to a destination, nil if its load balancing uses
// no hash.
func (r *RouteTranslator) hashPolicy(service *model.Service, port uint32,
	subset string) []*routev3.RouteAction_HashPolicy {
	if service == nil {
		return nil
	}
	hash := policyFor(r.Mesh.DestinationRule(service, r.Node), port,
		subset).loadBalancer.GetConsistentHash()
	switch key := hash.GetHashKey().(type) {
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		return []*routev3.RouteAction_HashPolicy{
			{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{
				Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: key.HttpHeaderName}}}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		cookie := &routev3.RouteAction_HashPolicy_Cookie{Name: key.HttpCookie.Name,
			Path: key.HttpCookie.Path, Ttl: key.HttpCookie.Ttl}
		for _, a := range key.HttpCookie.Attributes {
			cookie.Attributes = append(cookie.Attributes,
				&routev3.RouteAction_HashPolicy_CookieAttribute{Name: a.Name, Value: a.Value})
		}
		return []*routev3.RouteAction_HashPolicy{
			{PolicySpecifier: &routev3.RouteAction_HashPolicy_Cookie_{Cookie: cookie}}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		if key.UseSourceIp {
			return []*routev3.RouteAction_HashPolicy{
				{PolicySpecifier: &routev3.RouteAction_HashPolicy_ConnectionProperties_{
					ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{
						SourceIp: true}}}}
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		return []*routev3.RouteAction_HashPolicy{
			{PolicySpecifier: &routev3.RouteAction_HashPolicy_QueryParameter_{
				QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{
					Name: key.HttpQueryParameterName}}}}
	}
	return nil
}
