package render

import (
	"slices"
	"strings"

	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"outrider.org/outrider/bootstrap"
)

// Statistics that every restriction includes: those of Istio, and those that readiness and draining
// read. Without a count of its connections an active epoch would look idle.
var (
	requiredPrefixes = []string{
		"reporter=", "cluster_manager", "listener_manager", "server", "cluster." + DiscoveryCluster,
		"wasm", "component", "istio",
	}
	requiredSuffixes = []string{
		"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied",
		"downstream_cx_active", "downstream_rq_active",
	}
)

// statsConfig restricts the statistics only if the input says so. Istio's default list would leave
// little of an Envoy without Istio's filters. Names and tags are Envoy's.
func (b *builder) statsConfig() *metricsv3.StatsConfig {
	stats := b.in.Stats
	addAnnotations(&stats, b.in.Node.Metadata)
	if len(stats.InclusionPrefixes)+len(stats.InclusionSuffixes)+len(stats.InclusionRegexps) == 0 {
		return nil
	}
	list := &matcherv3.ListStringMatcher{}
	add := func(values []string, matcher func(string) *matcherv3.StringMatcher) {
		seen := map[string]bool{}
		for _, value := range values {
			if value != "" && !seen[value] {
				seen[value] = true
				list.Patterns = append(list.Patterns, matcher(value))
			}
		}
	}
	add(slices.Concat(requiredPrefixes, stats.InclusionPrefixes),
		func(prefix string) *matcherv3.StringMatcher {
			return &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}}
		})
	add(slices.Concat(requiredSuffixes, stats.InclusionSuffixes),
		func(suffix string) *matcherv3.StringMatcher {
			return &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: suffix}}
		})
	add(stats.InclusionRegexps, func(expression string) *matcherv3.StringMatcher {
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: expression},
		}}
	})
	return &metricsv3.StatsConfig{StatsMatcher: &metricsv3.StatsMatcher{
		StatsMatcher: &metricsv3.StatsMatcher_InclusionList{InclusionList: list},
	}}
}

// addAnnotations adds the inclusions of the node's annotations, comma-separated as in Istio.
func addAnnotations(s *bootstrap.Stats, metadata map[string]any) {
	annotations, ok := metadata["ANNOTATIONS"].(map[string]any)
	if !ok {
		return
	}
	for name, list := range map[string]*[]string{
		"sidecar.istio.io/statsInclusionPrefixes": &s.InclusionPrefixes,
		"sidecar.istio.io/statsInclusionSuffixes": &s.InclusionSuffixes,
		"sidecar.istio.io/statsInclusionRegexps":  &s.InclusionRegexps,
	} {
		if text, ok := annotations[name].(string); ok {
			*list = slices.Concat(*list, strings.Split(text, ","))
		}
	}
}
