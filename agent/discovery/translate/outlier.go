package translate

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// applyOutlier sets the outlier detection of a cluster.
func (d *draft) applyOutlier() {
	o := d.policy.outlier
	if o == nil {
		return
	}
	enforce := func(count *wrapperspb.UInt32Value) *wrapperspb.UInt32Value {
		if count == nil {
			return nil
		}
		return wrapperspb.UInt32(min(count.Value, 1) * 100)
	}
	out := &clusterv3.OutlierDetection{
		// Istio's API does not request ejection by success rate
		EnforcingSuccessRate: wrapperspb.UInt32(0),
		Interval:             o.Interval, BaseEjectionTime: o.BaseEjectionTime,
		MaxEjectionPercent: positive(o.MaxEjectionPercent),
		Consecutive_5Xx:    o.Consecutive_5XxErrors, EnforcingConsecutive_5Xx: enforce(
			o.Consecutive_5XxErrors),
		ConsecutiveGatewayFailure:          o.ConsecutiveGatewayErrors,
		EnforcingConsecutiveGatewayFailure: enforce(o.ConsecutiveGatewayErrors),
	}
	if o.SplitExternalLocalOriginErrors {
		out.SplitExternalLocalOriginErrors = true
		out.EnforcingLocalOriginSuccessRate = wrapperspb.UInt32(0)
		if o.ConsecutiveLocalOriginFailures.GetValue() > 0 {
			out.ConsecutiveLocalOriginFailure = o.ConsecutiveLocalOriginFailures
			out.EnforcingConsecutiveLocalOriginFailure = enforce(o.ConsecutiveLocalOriginFailures)
		}
	}
	d.OutlierDetection = out
	if codes := o.OutlierDetectionHttpErrorCodes; len(codes) > 0 {
		d.options().OutlierDetection = &upstreamv3.HttpProtocolOptions_OutlierDetection{
			ErrorMatcher: statusIn(codes)}
	}
	// always set: Envoy's default of 50 % would send requests to ejected endpoints of small
	// services
	d.common().HealthyPanicThreshold = &typev3.Percent{Value: float64(max(o.MinHealthPercent, 0))}
}

// common returns the cluster's common load balancer settings, and creates them if necessary.
func (d *draft) common() *clusterv3.Cluster_CommonLbConfig {
	if d.CommonLbConfig == nil {
		d.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{}
	}
	return d.CommonLbConfig
}

// statusIn returns a matcher for responses with one of the status codes.
func statusIn(codes []uint32) *matcherv3.MatchPredicate {
	rules := make([]*matcherv3.MatchPredicate, 0, len(codes))
	for _, code := range codes {
		rules = append(rules, &matcherv3.MatchPredicate{
			Rule: &matcherv3.MatchPredicate_HttpResponseHeadersMatch{
				HttpResponseHeadersMatch: &matcherv3.HttpHeadersMatch{
					Headers: []*routev3.HeaderMatcher{{Name: ":status",
						HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
							StringMatch: exactly(fmt.Sprint(code))}}}}}})
	}
	if len(rules) == 1 {
		return rules[0]
	}
	return &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_OrMatch{
		OrMatch: &matcherv3.MatchPredicate_MatchSet{Rules: rules}}}
}
