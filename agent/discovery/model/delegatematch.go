package model

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// mergeMatches returns the matches that satisfy both a match of the root VirtualService, whose
// gateways have full names, and a match of the delegate. The second result is false if a match of
// the delegate contradicts every match of the root. mergeMatches stops once it has found more than
// most matches.
func mergeMatches(root, delegate []*networking.HTTPMatchRequest, namespace string,
	most int) ([]*networking.HTTPMatchRequest, bool) {
	delegate = withGateways(delegate, namespace)
	if len(root) == 0 {
		return delegate, true
	}
	if len(delegate) == 0 {
		return root, true
	}
	var merged []*networking.HTTPMatchRequest
	for _, match := range delegate {
		met := false
		for _, outer := range root {
			if !contradict(outer, match) {
				merged = append(merged, mergeMatch(outer, match))
				met = true
			}
			if len(merged) > most {
				return merged, true
			}
		}
		if !met {
			return nil, false
		}
	}
	return merged, true
}

// withGateways returns a copy of matches with full gateway names.
func withGateways(matches []*networking.HTTPMatchRequest,
	namespace string) []*networking.HTTPMatchRequest {
	var out []*networking.HTTPMatchRequest
	for _, m := range matches {
		own := &networking.HTTPMatchRequest{}
		if m != nil {
			proto.Merge(own, m)
		}
		for i, name := range own.Gateways {
			own.Gateways[i] = GatewayName(name, namespace)
		}
		out = append(out, own)
	}
	return out
}

func mergeMatch(root, delegate *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	own := proto.Clone(delegate).(*networking.HTTPMatchRequest)
	own.Name = joined(root.Name, own.Name)
	inherit(&own.Uri, root.Uri)
	inherit(&own.Scheme, root.Scheme)
	inherit(&own.Method, root.Method)
	inherit(&own.Authority, root.Authority)
	own.Headers = over(root.Headers, own.Headers)
	own.WithoutHeaders = over(root.WithoutHeaders, own.WithoutHeaders)
	own.QueryParams = over(root.QueryParams, own.QueryParams)
	own.SourceLabels = over(root.SourceLabels, own.SourceLabels)
	if own.Port == 0 {
		own.Port = root.Port
	}
	if own.SourceNamespace == "" {
		own.SourceNamespace = root.SourceNamespace
	}
	if len(own.Gateways) == 0 {
		own.Gateways = root.Gateways
	}
	if own.StatPrefix == "" {
		own.StatPrefix = root.StatPrefix
	}
	return own
}

// over merges two maps; upper has precedence for keys in both.
func over[V any](under, upper map[string]V) map[string]V {
	if len(under) == 0 {
		return upper
	}
	both := maps.Clone(under)
	maps.Copy(both, upper)
	return both
}

// contradict reports whether a delegate's match cannot be combined with a match of its root, by
// Istio's rules: in a field that both set, the delegate's match must be contained in the root's.
func contradict(root, delegate *networking.HTTPMatchRequest) bool {
	for _, pair := range [][2]*networking.StringMatch{{root.Uri, delegate.Uri},
		{root.Scheme, delegate.Scheme}, {root.Method, delegate.Method},
		{root.Authority, delegate.Authority}} {
		if contradictText(pair[0], pair[1]) {
			return true
		}
	}
	for _, pair := range [][2]map[string]*networking.StringMatch{{root.Headers, delegate.Headers},
		{root.WithoutHeaders, delegate.WithoutHeaders}, {root.QueryParams, delegate.QueryParams}} {
		for key, own := range pair[1] {
			if contradictText(pair[0][key], own) {
				return true
			}
		}
	}
	for key, value := range delegate.SourceLabels {
		if outer, ok := root.SourceLabels[key]; ok && outer != value {
			return true
		}
	}
	return root.IgnoreUriCase != delegate.IgnoreUriCase ||
		root.Port != 0 && delegate.Port != 0 && root.Port != delegate.Port ||
		root.SourceNamespace != "" && root.SourceNamespace != delegate.SourceNamespace ||
		len(root.Gateways) > 0 && slices.ContainsFunc(delegate.Gateways, func(name string) bool {
			return !slices.Contains(root.Gateways, name)
		})
}

// contradictText reports whether a delegate's string match is not contained in the root's. A
// regular expression contradicts every other match, because containment cannot be decided.
func contradictText(root, delegate *networking.StringMatch) bool {
	if root == nil || delegate == nil {
		return false
	}
	switch outer := root.MatchType.(type) {
	case *networking.StringMatch_Exact:
		return delegate.GetExact() != outer.Exact
	case *networking.StringMatch_Prefix:
		switch own := delegate.MatchType.(type) {
		case *networking.StringMatch_Exact:
			return !strings.HasPrefix(own.Exact, outer.Prefix)
		case *networking.StringMatch_Prefix:
			return !strings.HasPrefix(own.Prefix, outer.Prefix)
		}
	}
	return true
}
