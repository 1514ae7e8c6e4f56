package explain

import (
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// publish adds metadata that a filter sets.
func (e *explanation) publish(filter string, values map[string]any) {
	if e.metadata == nil {
		e.metadata = map[string]map[string]any{}
	}
	if e.metadata[filter] == nil {
		e.metadata[filter] = map[string]any{}
	}
	for name, value := range values {
		e.metadata[filter][name] = value
	}
}

// hasMetadata reports whether the metadata that earlier filters have set matches.
func (e *explanation) hasMetadata(m *matcherv3.MetadataMatcher) truth {
	found := e.metadata[m.Filter]
	if found == nil && e.foreign {
		return e.lacks("what a filter of an EnvoyFilter says")
	}
	var value any = found
	for _, segment := range m.Path {
		object, _ := value.(map[string]any)
		value = object[segment.GetKey()]
	}
	holds := e.hasValue(m.Value, value)
	if m.Invert {
		return holds.not()
	}
	return holds
}

// hasValue reports whether a JSON value matches; nil is a missing value.
func (e *explanation) hasValue(m *matcherv3.ValueMatcher, value any) truth {
	switch want := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_NullMatch_:
		return never
	case *matcherv3.ValueMatcher_StringMatch:
		text, ok := value.(string)
		if !ok {
			return never
		}
		return e.matchesText(want.StringMatch, text)
	case *matcherv3.ValueMatcher_BoolMatch:
		is, ok := value.(bool)
		return truthOf(ok && is == want.BoolMatch)
	case *matcherv3.ValueMatcher_PresentMatch:
		return truthOf(want.PresentMatch && value != nil)
	case *matcherv3.ValueMatcher_DoubleMatch:
		number, ok := value.(float64)
		return truthOf(ok && (number == want.DoubleMatch.GetExact() ||
			number >= want.DoubleMatch.GetRange().GetStart() &&
				number < want.DoubleMatch.GetRange().GetEnd()))
	case *matcherv3.ValueMatcher_ListMatch:
		elements, _ := value.([]any)
		return some(elements, func(element any) truth {
			return e.hasValue(want.ListMatch.GetOneOf(), element)
		})
	case *matcherv3.ValueMatcher_OrMatch:
		return some(want.OrMatch.ValueMatchers, func(one *matcherv3.ValueMatcher) truth {
			return e.hasValue(one, value)
		})
	}
	return e.lacks(missingExtension)
}

// split replaces the text of each named claim by the list of its space-separated words.
func split(claims map[string]any, names []string) {
	for _, name := range names {
		if text, ok := claims[name].(string); ok {
			parts := []any{}
			for _, part := range strings.Fields(text) {
				parts = append(parts, part)
			}
			claims[name] = parts
		}
	}
}
