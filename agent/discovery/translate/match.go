package translate

import (
	"maps"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/rbac"
)

// everything returns a match for every request.
func everything() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// isEverything reports whether a match is satisfied by every request.
func isEverything(m *routev3.RouteMatch) bool {
	return (m.GetPrefix() == "/" || m.GetSafeRegex().GetRegex() == ".*") && len(m.Headers) == 0 &&
		len(m.QueryParameters)+len(m.DynamicMetadata) == 0
}

// requestMatch translates one HTTP match of a VirtualService; nil matches everything.
func requestMatch(in *networking.HTTPMatchRequest) *routev3.RouteMatch {
	out := everything()
	if in == nil {
		return out
	}
	switch uri := in.Uri.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: uri.Exact}
	case *networking.StringMatch_Prefix:
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: uri.Prefix}
	case *networking.StringMatch_Regex:
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex(uri.Regex)}
	}
	if in.IgnoreUriCase {
		out.CaseSensitive = wrapperspb.Bool(false)
	}
	for _, pseudo := range []struct {
		name  string
		match *networking.StringMatch
	}{{":method", in.Method}, {":authority", in.Authority}, {":scheme", in.Scheme}} {
		if pseudo.match != nil {
			out.Headers = append(out.Headers, headerMatch(pseudo.name, pseudo.match))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Headers)) {
		if claim, ok := model.ParseClaimHeader(name); ok {
			out.DynamicMetadata = append(out.DynamicMetadata, claimMatch(claim, in.Headers[name]))
			continue
		}
		out.Headers = append(out.Headers, headerMatch(name, in.Headers[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(in.WithoutHeaders)) {
		if claim, ok := model.ParseClaimHeader(name); ok {
			m := claimMatch(claim, in.WithoutHeaders[name])
			m.Invert = true
			out.DynamicMetadata = append(out.DynamicMetadata, m)
			continue
		}
		m := headerMatch(name, in.WithoutHeaders[name])
		m.InvertMatch = true
		m.TreatMissingHeaderAsEmpty = in.WithoutHeaders[name].GetMatchType() != nil
		out.Headers = append(out.Headers, m)
	}
	for _, name := range slices.Sorted(maps.Keys(in.QueryParams)) {
		m := &routev3.QueryParameterMatcher{Name: name,
			QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_PresentMatch{
				PresentMatch: true}}
		if s := stringMatch(in.QueryParams[name]); s != nil {
			m.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{
				StringMatch: s}
		}
		out.QueryParameters = append(out.QueryParameters, m)
	}
	return out
}

// headerMatch returns a matcher for a header's value, or, if stringMatch returns nil, for the
// header's presence.
func headerMatch(name string, in *networking.StringMatch) *routev3.HeaderMatcher {
	if s := stringMatch(in); s != nil {
		return &routev3.HeaderMatcher{Name: name,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: s}}
	}
	return &routev3.HeaderMatcher{Name: name,
		HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
}

// claimMatch returns a matcher for a claim of the request's token. The claim may be a text, or a
// list that contains the text.
func claimMatch(claim []string, in *networking.StringMatch) *matcherv3.MetadataMatcher {
	out := &matcherv3.MetadataMatcher{Filter: rbac.TokenFilter}
	for _, key := range append([]string{rbac.TokenClaims}, claim...) {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	text := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{
		StringMatch: stringMatch(in)}}
	list := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
		ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: text}}}}
	out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{
		OrMatch: &matcherv3.OrMatcher{ValueMatchers: []*matcherv3.ValueMatcher{list, text}}}}
	return out
}

// stringMatch translates a StringMatch of Istio; nil if it is empty.
func stringMatch(in *networking.StringMatch) *matcherv3.StringMatcher {
	switch m := in.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return exactly(m.Exact)
	case *networking.StringMatch_Prefix:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{
			Prefix: m.Prefix}}
	case *networking.StringMatch_Regex:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: regex(m.Regex)}}
	}
	return nil
}

func exactly(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: text}}
}

func regex(expression string) *matcherv3.RegexMatcher {
	return &matcherv3.RegexMatcher{Regex: expression}
}
