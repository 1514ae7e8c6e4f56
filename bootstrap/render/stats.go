package render

import (
	"slices"
	"strings"

	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
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

// statsConfig restricts the statistics to those that annotations of the node list, as in Istio;
// without annotations Envoy has all of them. Istio's default list would leave little of an Envoy
// without Istio's filters. Names and tags are Envoy's.
func (b *builder) statsConfig() *metricsv3.StatsConfig {
	annotations, _ := b.in.Node.Metadata["ANNOTATIONS"].(map[string]any)
	listed := func(annotation string) []string {
		text, _ := annotations["sidecar.istio.io/"+annotation].(string)
		return slices.DeleteFunc(strings.Split(text, ","), func(s string) bool { return s == "" })
	}
	prefixes, suffixes := listed("statsInclusionPrefixes"), listed("statsInclusionSuffixes")
	expressions := listed("statsInclusionRegexps")
	if len(prefixes)+len(suffixes)+len(expressions) == 0 {
		return nil
	}
	list := &matcherv3.ListStringMatcher{}
	for _, prefix := range slices.Concat(requiredPrefixes, prefixes) {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}})
	}
	for _, suffix := range slices.Concat(requiredSuffixes, suffixes) {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: suffix}})
	}
	for _, expression := range expressions {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{
				SafeRegex: &matcherv3.RegexMatcher{Regex: expression}}})
	}
	return &metricsv3.StatsConfig{StatsMatcher: &metricsv3.StatsMatcher{
		StatsMatcher: &metricsv3.StatsMatcher_InclusionList{InclusionList: list},
	}}
}
