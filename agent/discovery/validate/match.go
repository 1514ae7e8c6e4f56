package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) match(field string, m *networking.HTTPMatchRequest) {
	if m == nil {
		c.warn(field, "the match is empty and takes everything", "remove it")
		return
	}
	for name, s := range map[string]*networking.StringMatch{"uri": m.Uri, "scheme": m.Scheme,
		"method": m.Method, "authority": m.Authority} {
		if s != nil && s.MatchType == nil {
			c.warn(field+"."+name, "it is not said what is matched",
				"write exact, prefix or regex in it")
		}
		c.stringMatch(field+"."+name, s)
	}
	if exact := m.Uri.GetExact(); exact != "" && exact[0] != '/' || m.Uri.GetPrefix() != "" &&
		m.Uri.GetPrefix()[0] != '/' {
		c.warn(field+".uri", "no request's path begins so", "begin it with /")
	}
	if m.IgnoreUriCase && m.Uri.GetRegex() != "" {
		c.warn(field+".ignoreUriCase", "has no effect on a regular expression",
			"begin the expression with (?i)")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		path := fmt.Sprintf("%s.headers[%q]", field, name)
		c.matchedHeader(path, name, m.Headers[name])
		if m.Headers[name] == nil {
			c.fail(path, "is null", "write {} to ask that the header is there")
		}
		c.stringMatch(path, m.Headers[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.WithoutHeaders)) {
		path := fmt.Sprintf("%s.withoutHeaders[%q]", field, name)
		c.matchedHeader(path, name, m.WithoutHeaders[name])
		_, claim := model.ParseClaimHeader(name)
		// in Istio, this regular expression means "any value"
		if claim || m.WithoutHeaders[name].GetRegex() != "*" {
			c.stringMatch(path, m.WithoutHeaders[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.QueryParams)) {
		path := fmt.Sprintf("%s.queryParams[%q]", field, name)
		if name == "" {
			c.fail(path, "a query parameter without a name", "write its name")
		}
		c.stringMatch(path, m.QueryParams[name])
	}
	c.sources(field, m.Port, m.SourceLabels, m.SourceNamespace, m.Gateways)
	if len(m.Gateways) > 0 && (len(m.SourceLabels) > 0 || m.SourceNamespace != "") {
		c.warn(field+".gateways",
			"where gateways are named, sourceLabels and sourceNamespace have no effect",
			"write two matches")
	}
}

// matchedHeader checks the name of a header or pseudo header in a match, or the key of a claim.
func (c *checker) matchedHeader(field, name string, s *networking.StringMatch) {
	switch name {
	case ":method", ":scheme", ":authority", ":path", ":status":
		return
	}
	if _, ok := model.ParseClaimHeader(name); !ok {
		c.header(field, name)
		return
	}
	if c.sidecars {
		c.fail(field, "sidecars and delegates cannot route by the claims of a token",
			"name gateways without mesh in the VirtualService")
	}
	if s.GetMatchType() == nil {
		c.fail(field, "does not say which values of the claim match",
			"write exact, prefix or regex in it")
	}
}

func (c *checker) stringMatch(field string, s *networking.StringMatch) {
	uri := strings.HasSuffix(field, ".uri") // the prefix of a URI may be empty
	switch m := s.GetMatchType().(type) {
	case *networking.StringMatch_Regex:
		c.regex(field+".regex", m.Regex)
	case *networking.StringMatch_Prefix:
		if m.Prefix == "" && !uri {
			c.fail(field+".prefix", "is empty", "leave the match out to take everything")
		}
	case *networking.StringMatch_Exact:
		if m.Exact == "" && (uri || strings.HasSuffix(field, ".method")) {
			c.warn(field+".exact", "is empty, which no request has",
				"leave the match out to take everything")
		}
	}
}
