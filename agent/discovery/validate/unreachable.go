package validate

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

func isError(f object.Finding) bool { return f.Severity == condition.Error }

// unreachable warns about routes and matches that can match no request, because earlier ones match
// all requests that they would match.
func (c *checker) unreachable(v *networking.VirtualService) {
	var http, tls, tcp reached
	for i, route := range v.Http {
		reach(c, &http, fmt.Sprintf("http[%d]", i), route.Match)
	}
	for i, route := range v.Tls {
		reach(c, &tls, fmt.Sprintf("tls[%d]", i), route.Match)
	}
	for i, route := range v.Tcp {
		reach(c, &tcp, fmt.Sprintf("tcp[%d]", i), route.Match)
	}
}

// reached records the matches of earlier routes.
type reached struct {
	all string // field of an earlier route whose match accepts every request; "": none
	// field of the first match with an encoding, by the encoding
	same map[string]string
	// paths of matches, by the encoding of the matches' other conditions
	paths map[string][]pathMatch
}

type pathMatch struct {
	prefix     string
	ignoreCase bool
	field      string
}

func reach[M proto.Message](c *checker, r *reached, field string, matches []M) {
	if r.all != "" {
		c.warn(field, fmt.Sprintf("cannot be reached: %s takes everything", r.all), "move it up")
		return
	}
	if len(matches) == 0 {
		r.all = field
	}
	if r.same == nil {
		r.same, r.paths = map[string]string{}, map[string][]pathMatch{}
	}
	for i, match := range matches {
		path := fmt.Sprintf("%s.match[%d]", field, i)
		by := r.same[object.EncodeDeterministic(match)]
		if request, ok := proto.Message(match).(*networking.HTTPMatchRequest); ok && by == "" {
			by = r.request(path, request)
		}
		if by != "" {
			c.warn(path, fmt.Sprintf("cannot be met: %s takes all that it takes", by),
				"move it up or remove it")
		}
		r.same[object.EncodeDeterministic(match)] = path
	}
}

// request records a match. If an earlier match covers all paths of this match, and has either no
// other conditions or the same ones, request returns the field of the earlier match.
func (r *reached) request(field string, m *networking.HTTPMatchRequest) string {
	beside := &networking.HTTPMatchRequest{}
	if m != nil {
		proto.Merge(beside, m)
	}
	beside.Uri, beside.IgnoreUriCase, beside.Name, beside.StatPrefix = nil, false, "", ""
	own := pathMatch{prefix: "/", ignoreCase: m.GetIgnoreUriCase(), field: field}
	exact := false
	switch uri := m.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Prefix:
		own.prefix = uri.Prefix
	case *networking.StringMatch_Exact:
		own.prefix, exact = uri.Exact, true
	case *networking.StringMatch_Regex:
		return ""
	}
	keys := []string{""}
	if key := object.EncodeDeterministic(beside); key != "" {
		keys = append(keys, key)
	}
	for _, key := range keys {
		for _, earlier := range r.paths[key] {
			if strings.HasPrefix(own.prefix, earlier.prefix) &&
				(earlier.ignoreCase || !own.ignoreCase) {
				return earlier.field
			}
		}
	}
	if !exact {
		key := keys[len(keys)-1]
		r.paths[key] = append(r.paths[key], own)
	}
	return ""
}
