package rbac

import (
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func exactly(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: text}}
}

func prefix(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: text}}
}

func suffix(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: text}}
}

func pattern(regex string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
		SafeRegex: &matcherv3.RegexMatcher{Regex: regex}}}
}

// text returns a matcher for a value as in Istio: "*" alone matches any non-empty text; with a
// leading "*" the suffix must match, with a trailing "*" the prefix.
func text(value string) *matcherv3.StringMatcher {
	if value == "*" {
		return pattern(".+")
	}
	return wildcard(value)
}

func wildcard(value string) *matcherv3.StringMatcher {
	switch {
	case strings.HasPrefix(value, "*"):
		return suffix(value[1:])
	case strings.HasSuffix(value, "*"):
		return prefix(strings.TrimSuffix(value, "*"))
	}
	return exactly(value)
}

// header returns a matcher for a header. The value "*" matches any value, even an empty one.
func header(name, value string, ignoreCase bool) *routev3.HeaderMatcher {
	if value == "*" {
		return &routev3.HeaderMatcher{Name: name,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
	}
	match := wildcard(value)
	match.IgnoreCase = ignoreCase
	return &routev3.HeaderMatcher{Name: name,
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: match}}
}

// block returns the CIDR block of a valid address or block.
func block(value string) *corev3.CidrRange {
	blocks, err := netip.ParsePrefix(value)
	if address, invalid := netip.ParseAddr(value); err != nil && invalid == nil {
		blocks = netip.PrefixFrom(address, address.BitLen())
	}
	return &corev3.CidrRange{AddressPrefix: blocks.Addr().String(),
		PrefixLen: wrapperspb.UInt32(uint32(blocks.Bits()))}
}

func stringValue(match *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{
		StringMatch: match}}
}

func textValue(value string) *matcherv3.ValueMatcher { return stringValue(text(value)) }

// inList returns a matcher for lists that have a matching element.
func inList(value *matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
		ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: value}}}}
}

// oneOf returns a matcher that matches if any of the alternatives does.
func oneOf(alternatives []*matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	if len(alternatives) == 1 {
		return alternatives[0]
	}
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{
		OrMatch: &matcherv3.OrMatcher{ValueMatchers: alternatives}}}
}

// metadata returns a matcher for a value in the dynamic metadata of a filter. It uses
// sourced_metadata, because the field metadata that Istio sets is deprecated in Envoy.
func metadata(filter string, keys []string,
	value *matcherv3.ValueMatcher) *rbacv3.SourcedMetadata {
	out := &matcherv3.MetadataMatcher{Filter: filter, Value: value}
	for _, key := range keys {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	return &rbacv3.SourcedMetadata{MetadataMatcher: out,
		MetadataSource: rbacv3.MetadataSource_DYNAMIC}
}
