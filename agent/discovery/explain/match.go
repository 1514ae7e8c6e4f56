package explain

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// verdict is the result of a match, with the conditions that the request does not determine.
type verdict struct {
	holds bool
	open  []string
}

func (v verdict) certain() bool { return v.holds && len(v.open) == 0 }

// match evaluates a route's match with the request.
func (e *explanation) match(m *routev3.RouteMatch) verdict {
	v := verdict{holds: true}
	if !e.matchPath(m, &v) {
		return verdict{}
	}
	for _, h := range m.GetHeaders() {
		if !e.matchHeader(h, &v) {
			return verdict{}
		}
	}
	for _, q := range m.GetQueryParameters() {
		if !e.matchParameter(q, &v) {
			return verdict{}
		}
	}
	if m.GetGrpc() != nil {
		if kind, _ := e.header("content-type"); !strings.HasPrefix(kind, "application/grpc") {
			return verdict{}
		}
	}
	if f := m.GetRuntimeFraction().GetDefaultValue(); f != nil && percent(f) < 100 {
		if percent(f) == 0 {
			return verdict{}
		}
		v.open = append(v.open, strconv.FormatFloat(percent(f), 'g', 4, 64)+" % of the requests")
	}
	switch every(m.GetDynamicMetadata(), e.hasMetadata) {
	case never:
		return verdict{}
	case maybe:
		v.open = append(v.open, "metadata of filters")
	}
	for what, required := range map[string]bool{"the client's certificate": m.GetTlsContext() != nil,
		"state of filters": len(m.GetFilterState()) > 0, "cookies": len(m.GetCookies()) > 0} {
		if required {
			v.open = append(v.open, what)
		}
	}
	return v
}

func (e *explanation) matchPath(m *routev3.RouteMatch, v *verdict) bool {
	p, _, _ := strings.Cut(e.request.Path, "?")
	fold := func(s string) string { return s }
	if m.GetCaseSensitive() != nil && !m.CaseSensitive.Value {
		fold = strings.ToLower
	}
	switch want := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Path:
		return fold(p) == fold(want.Path)
	case *routev3.RouteMatch_Prefix:
		return strings.HasPrefix(fold(p), fold(want.Prefix))
	case *routev3.RouteMatch_PathSeparatedPrefix:
		rest, ok := strings.CutPrefix(fold(p), fold(want.PathSeparatedPrefix))
		return ok && (rest == "" || rest[0] == '/')
	case *routev3.RouteMatch_SafeRegex:
		return fullMatch(want.SafeRegex.GetRegex(), p)
	case *routev3.RouteMatch_ConnectMatcher_:
		return e.request.Method == http.MethodConnect
	}
	v.open = append(v.open, "a path policy of an extension")
	return true
}

// fullMatch reports whether a regular expression matches a whole text, as in Envoy. An invalid
// expression matches nothing; Envoy would have refused it.
func fullMatch(expression, text string) bool {
	compiled, err := regexp.Compile(`\A(?:` + expression + `)\z`)
	return err == nil && compiled.MatchString(text)
}

// header returns the value of a header, and whether the request has the header. Several values are
// joined as Envoy joins them.
func (e *explanation) header(name string) (string, bool) {
	switch name = strings.ToLower(name); name {
	case ":method":
		return e.request.Method, true
	case ":authority", "host":
		return e.authority(), true
	case ":path":
		return e.request.Path, true
	case ":scheme":
		if e.request.TLS {
			return "https", true
		}
		return "http", true
	}
	var values []string
	for _, h := range e.request.Headers {
		if strings.EqualFold(h.Name, name) {
			values = append(values, h.Value)
		}
	}
	return strings.Join(values, ","), len(values) > 0
}

func (e *explanation) matchHeader(h *routev3.HeaderMatcher, v *verdict) bool {
	value, there := e.header(h.Name)
	if want, ok := h.HeaderMatchSpecifier.(*routev3.HeaderMatcher_PresentMatch); ok ||
		h.HeaderMatchSpecifier == nil {
		present := !ok || want.PresentMatch
		return (there || h.TreatMissingHeaderAsEmpty) == present != h.InvertMatch
	}
	if !there && !h.TreatMissingHeaderAsEmpty {
		return false // a missing header does not match, even if the match is inverted
	}
	var holds bool
	switch want := h.HeaderMatchSpecifier.(type) {
	case *routev3.HeaderMatcher_StringMatch:
		var known bool
		if holds, known = matchString(want.StringMatch, value); !known {
			v.open = append(v.open, "header "+h.Name+" by an extension")
			return true
		}
	case *routev3.HeaderMatcher_RangeMatch:
		number, err := strconv.ParseInt(value, 10, 64)
		holds = err == nil && number >= want.RangeMatch.GetStart() &&
			number < want.RangeMatch.GetEnd()
	default:
		v.open = append(v.open, "header "+h.Name+" in a way that Envoy is giving up")
		return true
	}
	return holds != h.InvertMatch
}

// matchString reports whether a text matches. known is false if the result depends on an extension
// of Envoy.
func matchString(m *matcherv3.StringMatcher, text string) (holds, known bool) {
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = strings.ToLower
	}
	switch want := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return fold(text) == fold(want.Exact), true
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(fold(text), fold(want.Prefix)), true
	case *matcherv3.StringMatcher_Suffix:
		return strings.HasSuffix(fold(text), fold(want.Suffix)), true
	case *matcherv3.StringMatcher_Contains:
		return strings.Contains(fold(text), fold(want.Contains)), true
	case *matcherv3.StringMatcher_SafeRegex:
		return fullMatch(want.SafeRegex.GetRegex(), text), true
	}
	return false, false
}

func (e *explanation) matchParameter(q *routev3.QueryParameterMatcher, v *verdict) bool {
	value, there := parameter(e.request.Path, q.Name)
	switch want := q.QueryParameterMatchSpecifier.(type) {
	case *routev3.QueryParameterMatcher_StringMatch:
		if !there {
			return false
		}
		holds, known := matchString(want.StringMatch, value)
		if !known {
			v.open = append(v.open, "query parameter "+q.Name+" by an extension")
		}
		return holds || !known
	case *routev3.QueryParameterMatcher_PresentMatch:
		return there == want.PresentMatch
	}
	return there
}

// parameter returns the first value of a query parameter as it is, without decoding.
func parameter(target, name string) (string, bool) {
	_, query, _ := strings.Cut(target, "?")
	for part := range strings.SplitSeq(query, "&") {
		if key, value, _ := strings.Cut(part, "="); key == name && part != "" {
			return value, true
		}
	}
	return "", false
}
