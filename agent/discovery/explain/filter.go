package explain

import (
	"fmt"
	"net/http"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// Names of the supported HTTP filters, in the order in which Outrider's listeners have them.
const (
	faultFilter  = "envoy.filters.http.fault"
	corsFilter   = "envoy.filters.http.cors"
	routerFilter = "envoy.filters.http.router"
)

// perRoute decodes the configuration of a filter in the route, or else in its virtual host. It
// reports whether there is one.
func perRoute[T proto.Message](filter string, host *routev3.VirtualHost, r *routev3.Route,
	into T) bool {
	packed := r.TypedPerFilterConfig[filter]
	if packed == nil {
		packed = host.TypedPerFilterConfig[filter]
	}
	_, ok := unpack(packed, into)
	return ok
}

// fault adds a step to the explanation for the faults of a route, and reports whether a fault
// certainly ends the request.
func (e *explanation) fault(host *routev3.VirtualHost, r *routev3.Route,
	origins []resource.Origin) bool {
	f := &faultv3.HTTPFault{}
	if !perRoute(faultFilter, host, r, f) {
		return false
	}
	var facts []string
	if d := f.GetDelay(); d != nil {
		facts = append(facts, fmt.Sprintf("delays %g %% by %v", percent(d.GetPercentage()),
			d.GetFixedDelay().AsDuration()))
	}
	abort, share := f.GetAbort(), percent(f.GetAbort().GetPercentage())
	if abort != nil {
		what := fmt.Sprintf("status %d", abort.GetHttpStatus())
		if abort.GetGrpcStatus() != 0 {
			what = fmt.Sprintf("gRPC status %d", abort.GetGrpcStatus())
		}
		facts = append(facts, fmt.Sprintf("answers %g %% with %s", share, what))
	}
	if len(facts) == 0 {
		return false
	}
	e.step("fault", "", origins, facts...)
	if abort == nil || share < 100 {
		return false
	}
	e.answer.Outcome, e.answer.Status = OutcomeLocalReply, int(abort.GetHttpStatus())
	if abort.GetGrpcStatus() != 0 {
		e.answer.Status = 200 // gRPC sends an error in a trailer, and the HTTP status is 200
	}
	return true
}

// preflight reports whether the proxy itself answers the request as a CORS preflight request.
func (e *explanation) preflight(host *routev3.VirtualHost, r *routev3.Route,
	origins []resource.Origin) bool {
	policy := &corsv3.CorsPolicy{}
	origin, from := e.header("origin")
	_, isPreflight := e.header("access-control-request-method")
	if e.request.Method != http.MethodOptions || !from || !isPreflight ||
		!perRoute(corsFilter, host, r, policy) {
		return false
	}
	allowed := slices.ContainsFunc(policy.AllowOriginStringMatch,
		func(m *matcherv3.StringMatcher) bool {
			holds, _ := matchString(m, origin)
			return holds || m.GetExact() == "*"
		})
	if !allowed && (policy.ForwardNotMatchingPreflights == nil ||
		policy.ForwardNotMatchingPreflights.Value) {
		return false
	}
	fact := "origin " + origin + " is allowed"
	if !allowed {
		fact = "origin " + origin + " is not allowed"
	}
	e.answer.Outcome, e.answer.Status = OutcomeLocalReply, 200
	e.step("CORS", "", origins, fact, "answers the preflight itself")
	return true
}
