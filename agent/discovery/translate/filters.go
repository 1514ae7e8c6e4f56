package translate

import (
	"fmt"
	"math"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

// Names of the HTTP filters of outbound listeners. The first two have per-route settings.
const (
	corsFilter   = "envoy.filters.http.cors"
	faultFilter  = "envoy.filters.http.fault"
	routerFilter = "envoy.filters.http.router"
)

// filterConfigs sets a route's settings for HTTP filters.
func filterConfigs(out *routev3.Route, in *networking.HTTPRoute) {
	put := func(filter string, config proto.Message) {
		if out.TypedPerFilterConfig == nil {
			out.TypedPerFilterConfig = map[string]*anypb.Any{}
		}
		out.TypedPerFilterConfig[filter] = typed(config)
	}
	if config := fault(in.Fault); config != nil {
		put(faultFilter, config)
	}
	if in.CorsPolicy != nil {
		put(corsFilter, cors(in.CorsPolicy))
	}
}

// fraction converts a percentage to millionths.
func fraction(percent float64) *typev3.FractionalPercent {
	return &typev3.FractionalPercent{Numerator: uint32(math.Round(percent * 10_000)),
		Denominator: typev3.FractionalPercent_MILLION}
}

// fault translates a fault injection. It returns nil if nothing is delayed or aborted; a fault
// without a percentage affects no requests.
func fault(in *networking.HTTPFaultInjection) *faultv3.HTTPFault {
	out := &faultv3.HTTPFault{}
	if delay := in.GetDelay(); delay.GetFixedDelay() != nil {
		share := fraction(
			float64(delay.Percent)) //nolint:staticcheck // deprecated, still valid YAML
		if delay.Percentage != nil {
			share = fraction(delay.Percentage.Value)
		}
		out.Delay = &commonfaultv3.FaultDelay{Percentage: share,
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{
				FixedDelay: delay.GetFixedDelay()}}
	}
	switch kind := in.GetAbort().GetErrorType().(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		out.Abort = &faultv3.FaultAbort{ErrorType: &faultv3.FaultAbort_HttpStatus{
			HttpStatus: uint32(kind.HttpStatus)}}
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		code, _ := model.GRPCStatus(kind.GrpcStatus) // validation accepts only known codes
		out.Abort = &faultv3.FaultAbort{ErrorType: &faultv3.FaultAbort_GrpcStatus{
			GrpcStatus: code}}
	}
	if out.Abort != nil {
		out.Abort.Percentage = fraction(in.Abort.GetPercentage().GetValue())
	}
	if out.Delay == nil && out.Abort == nil {
		return nil
	}
	return out
}

func cors(in *networking.CorsPolicy) *corsv3.CorsPolicy {
	out := &corsv3.CorsPolicy{AllowMethods: strings.Join(in.AllowMethods, ","),
		AllowHeaders:  strings.Join(in.AllowHeaders, ","),
		ExposeHeaders: strings.Join(in.ExposeHeaders, ","), AllowCredentials: in.AllowCredentials,
		ForwardNotMatchingPreflights: wrapperspb.Bool(
			in.UnmatchedPreflights != networking.CorsPolicy_IGNORE),
		FilterEnabled: &corev3.RuntimeFractionalPercent{DefaultValue: fraction(100)}}
	for _, origin := range in.AllowOrigins {
		if s := stringMatch(origin); s != nil {
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, s)
		}
	}
	if len(in.AllowOrigins) == 0 {
		for _, origin := range in.AllowOrigin { //nolint:staticcheck // deprecated, still valid YAML
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch,
				exactly(origin))
		}
	}
	if in.MaxAge != nil {
		out.MaxAge = fmt.Sprint(in.MaxAge.Seconds)
	}
	return out
}

// mirrors adds request mirroring to a route. Mirrored requests retain their host, without Envoy's
// suffix "-shadow".
func (r *RouteTranslator) mirrors(action *routev3.RouteAction, in model.HTTPRoute, field string) {
	mirror := func(to *networking.Destination, percent *networking.Percent, field string) {
		share := fraction(100)
		if percent != nil {
			share = fraction(percent.Value)
		}
		if share.Numerator == 0 {
			return
		}
		name, _ := r.destination(in.Object, to, field)
		action.RequestMirrorPolicies = append(action.RequestMirrorPolicies,
			&routev3.RouteAction_RequestMirrorPolicy{Cluster: name,
				RuntimeFraction: &corev3.RuntimeFractionalPercent{
					DefaultValue: share},
				DisableShadowHostSuffixAppend: true,
				TraceSampled:                  wrapperspb.Bool(false)})
	}
	if in.Mirror != nil {
		percent := in.MirrorPercentage
		old := in.MirrorPercent //nolint:staticcheck // deprecated, still valid YAML
		if percent == nil && old != nil {
			percent = &networking.Percent{Value: float64(old.Value)}
		}
		mirror(in.Mirror, percent, field+".mirror")
	}
	for i, m := range in.Mirrors {
		mirror(m.Destination, m.Percentage, fmt.Sprintf("%s.mirrors[%d].destination", field, i))
	}
}
