package render

import (
	"slices"
	"strings"

	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"outrider.org/outrider/bootstrap"
)

// What every restriction of the statistics must leave: Istio's own list, then what readiness and the drain read. An
// epoch whose active connections are not counted would look idle while it is not.
var (
	requiredPrefixes = []string{
		"reporter=", "cluster_manager", "listener_manager", "server", "cluster." + DiscoveryCluster, "wasm", "component", "istio",
	}
	requiredSuffixes = []string{
		"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied",
		"downstream_cx_active", "downstream_rq_active",
	}
)

// statsConfig restricts the statistics only where the input asks for it: Istio's default list leaves little of a plain
// Envoy, whose metrics come from its own statistics and not from Istio's filters. Names and tags stay Envoy's.
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
	add(slices.Concat(requiredPrefixes, stats.InclusionPrefixes), func(prefix string) *matcherv3.StringMatcher {
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}}
	})
	add(slices.Concat(requiredSuffixes, stats.InclusionSuffixes), func(suffix string) *matcherv3.StringMatcher {
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: suffix}}
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

// addAnnotations adds what the node's annotations ask for, as in Istio: lists of names separated by commas.
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
