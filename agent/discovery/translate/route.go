package translate

import (
	"fmt"
	"maps"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// Router translates what VirtualServices say for one listener's port. It remembers which hosts it
// asked the world about.
type Router struct {
	World *model.World
	Node  model.Node
	// the gateways it is for: model.MeshGateway, or "namespace/name" of those that share the
	// listener
	Gateway []string
	Port    uint32 // of the listener
	TLS     bool   // requests come over TLS

	// the service that a host means to the proxy; nil: as World.Service has it
	Sees func(host string) *model.Service
	// the service of a host that shares the listener's routes; nil with gateways
	Beside func(host string) *model.Service
	// whether a VirtualService for the listener's requests names a host itself; nil with gateways
	Named func(host string) bool

	reads    map[string]struct{}
	problems []object.Problem
}

func (r *Router) begin() { r.reads, r.problems = map[string]struct{}{}, nil }

// Found returns what was told since it was last asked, and the hosts whose service or rule was
// read, sorted.
func (r *Router) Found() ([]object.Problem, []string) {
	problems, reads := r.problems, slices.Sorted(maps.Keys(r.reads))
	r.begin()
	return problems, reads
}

// service looks a host up and remembers that.
func (r *Router) service(host string) *model.Service {
	if r.reads == nil {
		r.reads = map[string]struct{}{}
	}
	r.reads[host] = struct{}{}
	if r.Sees != nil {
		return r.Sees(host)
	}
	return r.World.Service(host, r.Node.Namespace)
}

// routes translates all routes of a VirtualService that apply here, in their order.
func (r *Router) routes(routing *model.Routing) []ownRoute {
	r.problems = append(r.problems, routing.Problems...)
	var out []ownRoute
	for _, in := range routing.HTTP {
		field := fmt.Sprintf("http[%d]", in.Index)
		if len(in.Match) == 0 {
			// Nothing after it can be reached.
			return append(out, ownRoute{r.route(in, nil), in.Object, field})
		}
		for i, match := range in.Match {
			if !r.applies(match, routing) {
				continue
			}
			route := ownRoute{r.route(in, match), in.Object, field}
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

// applies tells whether a match can be met by requests that come through here. Where it names
// gateways, labels and namespace of the client do not count, as in Istio.
func (r *Router) applies(match *networking.HTTPMatchRequest, routing *model.Routing) bool {
	switch {
	case match.Port != 0 && match.Port != r.Port:
		return false
	case len(match.Gateways) > 0:
		return r.gatewaysMeet(match.Gateways, routing)
	}
	return model.Selects(match.SourceLabels, r.Node.Labels) && (match.SourceNamespace == "" ||
		match.SourceNamespace == r.Node.Namespace)
}

// gatewaysMeet tells whether a match is meant for here; one that names no gateway is meant for all.
func (r *Router) gatewaysMeet(names []string, routing *model.Routing) bool {
	return len(names) == 0 || slices.ContainsFunc(names, func(name string) bool {
		return slices.Contains(r.Gateway, model.GatewayName(name, routing.Object.Namespace))
	})
}

func (r *Router) route(in model.HTTPRoute, match *networking.HTTPMatchRequest) *routev3.Route {
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
	filterConfigs(out, in.HTTPRoute)
	return out
}

// defaultRoute sends everything to one cluster.
func (r *Router) defaultRoute(cluster string,
	hash []*routev3.RouteAction_HashPolicy) *routev3.Route {
	return &routev3.Route{Name: "default", Match: everything(), Action: &routev3.Route_Route{
		Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:          durationpb.New(0),
			RetryPolicy:      r.retryPolicy(nil, false), HashPolicy: hash}}}
}

// hashPolicy is how requests to a destination are hashed, if they are.
func (r *Router) hashPolicy(service *model.Service, port uint32,
	subset string) []*routev3.RouteAction_HashPolicy {
	if service == nil {
		return nil
	}
	hash := policyFor(r.World.Rule(service, r.Node), port, subset).loadBalancer.GetConsistentHash()
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
