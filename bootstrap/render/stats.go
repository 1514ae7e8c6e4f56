package render

import (
	"slices"
	"strings"

	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/bootstrap"
)

// statsConfig names the statistics (see statTags) and selects them.
func (b *builder) statsConfig() *metricsv3.StatsConfig {
	config := &metricsv3.StatsConfig{StatsTags: tagSpecifiers(b.in.Stats.All),
		UseAllDefaultTags: wrapperspb.Bool(false)}
	if b.in.Stats.All {
		return config
	}
	selected := b.selectedStats()
	list := &matcherv3.ListStringMatcher{}
	for _, prefix := range selected.Prefixes {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}})
	}
	for _, suffix := range selected.Suffixes {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: suffix}})
	}
	for _, expression := range selected.Regexps {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{
				SafeRegex: &matcherv3.RegexMatcher{Regex: expression}}})
	}
	config.StatsMatcher = &metricsv3.StatsMatcher{
		StatsMatcher: &metricsv3.StatsMatcher_InclusionList{InclusionList: list}}
	return config
}

// selectedStats returns the default statistics, those of the configuration and those of Istio's
// annotations of the node, or an expression for all.
func (b *builder) selectedStats() bootstrap.StatsSelection {
	if b.in.Stats.All {
		return bootstrap.StatsSelection{Regexps: []string{".*"}}
	}
	annotations, _ := b.in.Node.Metadata["ANNOTATIONS"].(map[string]any)
	join := func(defaults, configured []string, annotation string) []string {
		text, _ := annotations["sidecar.istio.io/"+annotation].(string)
		listed := slices.DeleteFunc(strings.Split(text, ","), func(s string) bool { return s == "" })
		return slices.Concat(defaults, configured, listed)
	}
	return bootstrap.StatsSelection{
		Prefixes: join(defaultPrefixes, b.in.Stats.Prefixes, "statsInclusionPrefixes"),
		Suffixes: join(defaultSuffixes, b.in.Stats.Suffixes, "statsInclusionSuffixes"),
		Regexps:  join(defaultExpressions(), b.in.Stats.Regexps, "statsInclusionRegexps"),
	}
}
