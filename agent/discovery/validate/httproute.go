package validate

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) match(field string, m *networking.HTTPMatchRequest) {
	if m == nil {
		c.fail(field, "the match is empty", "remove it to take everything")
		return
	}
	for name, s := range map[string]*networking.StringMatch{"uri": m.Uri, "scheme": m.Scheme, "method": m.Method, "authority": m.Authority} {
		if s != nil && s.MatchType == nil {
			c.fail(field+"."+name, "it is not said what is matched", "write exact, prefix or regex in it")
		}
		c.stringMatch(field+"."+name, s)
	}
	if exact := m.Uri.GetExact(); exact != "" && exact[0] != '/' || m.Uri.GetPrefix() != "" && m.Uri.GetPrefix()[0] != '/' {
		c.warn(field+".uri", "no request's path begins so", "begin it with /")
	}
	for kind, headers := range map[string]map[string]*networking.StringMatch{"headers": m.Headers, "withoutHeaders": m.WithoutHeaders} {
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			here := fmt.Sprintf("%s.%s[%q]", field, kind, name)
			if !strings.HasPrefix(name, ":") {
				c.header(here, name)
			}
			c.stringMatch(here, headers[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.QueryParams)) {
		here := fmt.Sprintf("%s.queryParams[%q]", field, name)
		if name == "" {
			c.fail(here, "a query parameter without a name", "")
		}
		c.stringMatch(here, m.QueryParams[name])
	}
	if m.Port != 0 {
		c.port(field+".port", m.Port)
	}
	c.labels(field+".sourceLabels", m.SourceLabels)
	for i, name := range m.Gateways {
		c.gatewayName(fmt.Sprintf("%s.gateways[%d]", field, i), name)
	}
}

func (c *checker) stringMatch(field string, s *networking.StringMatch) {
	switch m := s.GetMatchType().(type) {
	case *networking.StringMatch_Regex:
		if m.Regex != "*" {
			c.regex(field+".regex", m.Regex)
		}
	case *networking.StringMatch_Prefix:
		if m.Prefix == "" {
			c.fail(field+".prefix", "is empty", "leave the match out to take everything")
		}
	case *networking.StringMatch_Exact:
		if m.Exact == "" && (strings.HasSuffix(field, ".uri") || strings.HasSuffix(field, ".method")) {
			c.fail(field+".exact", "is empty", "leave the match out to take everything")
		}
	}
}

func (c *checker) redirect(field string, r *networking.HTTPRedirect) {
	if r == nil {
		return
	}
	if r.Uri == "" && r.Authority == "" && r.RedirectPort == nil && r.Scheme == "" && r.PrefixRewrite == "" {
		c.fail(field, "the redirect changes nothing", "write uri, authority, port or scheme in it")
	}
	if r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https" {
		c.fail(field+".scheme", fmt.Sprintf("%q is no scheme", r.Scheme), "write http or https")
	}
	switch r.RedirectCode {
	case 0, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		c.fail(field+".redirectCode", fmt.Sprintf("%d is no redirect that Envoy sends", r.RedirectCode), "write 301, 302, 303, 307 or 308")
	}
	if port, ok := r.RedirectPort.(*networking.HTTPRedirect_Port); ok {
		c.port(field+".port", port.Port)
	}
}

func (c *checker) directResponse(field string, d *networking.HTTPDirectResponse) {
	if d == nil {
		return
	}
	if d.Status < 200 || d.Status > 599 {
		c.fail(field+".status", fmt.Sprintf("%d is no status of a response", d.Status), "write a number from 200 to 599")
	}
	const largest = 1 << 20
	if size := max(len(d.GetBody().GetString_()), len(d.GetBody().GetBytes())); size > largest {
		c.fail(field+".body", fmt.Sprintf("has %d bytes, more than %d", size, largest), "")
	}
}

func (c *checker) rewrite(field string, r *networking.HTTPRewrite) {
	if r == nil {
		return
	}
	if r.Uri == "" && r.Authority == "" && r.UriRegexRewrite == nil {
		c.fail(field, "the rewrite changes nothing", "write uri or authority in it")
	}
	if r.UriRegexRewrite != nil {
		if r.Uri != "" {
			c.fail(field+".uri", "excludes uriRegexRewrite, and both are given", "keep one")
		}
		c.regex(field+".uriRegexRewrite.match", r.UriRegexRewrite.Match)
		if r.UriRegexRewrite.Rewrite == "" {
			c.fail(field+".uriRegexRewrite.rewrite", "is empty", "")
		}
	}
}

func (c *checker) headers(field string, h *networking.Headers) {
	for kind, operations := range map[string]*networking.Headers_HeaderOperations{"request": h.GetRequest(), "response": h.GetResponse()} {
		for name, headers := range map[string]map[string]string{"set": operations.GetSet(), "add": operations.GetAdd()} {
			for _, header := range slices.Sorted(maps.Keys(headers)) {
				c.changedHeader(fmt.Sprintf("%s.%s.%s[%q]", field, kind, name, header), header, kind == "request" && name == "set")
				if strings.ContainsAny(headers[header], "\x00\r\n") {
					c.fail(fmt.Sprintf("%s.%s.%s[%q]", field, kind, name, header), "the value has a line break", "")
				}
			}
		}
		for i, header := range operations.GetRemove() {
			c.changedHeader(fmt.Sprintf("%s.%s.remove[%d]", field, kind, i), header, false)
		}
	}
}

// changedHeader takes every header but those that say where a request goes; the host of a request may be set.
func (c *checker) changedHeader(field, name string, host bool) {
	lower := strings.ToLower(name)
	switch {
	case host && (lower == "host" || lower == ":authority"):
	case lower == "host", strings.HasPrefix(name, ":"):
		c.fail(field, fmt.Sprintf("%s cannot be changed here", name), "set the host with rewrite.authority")
	default:
		c.header(field, name)
	}
}

func (c *checker) fault(field string, f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	if f.Delay == nil && f.Abort == nil {
		c.fail(field, "the fault does nothing", "write delay or abort in it")
	}
	if d := f.Delay; d != nil {
		c.percent(field+".delay.percentage", d.Percentage)
		if d.Percent < 0 || d.Percent > 100 { //nolint:staticcheck // deprecated, still valid YAML
			c.fail(field+".delay.percent", "is no percentage", "write a number from 0 to 100")
		}
		switch delay := d.HttpDelayType.(type) {
		case *networking.HTTPFaultInjection_Delay_FixedDelay:
			c.duration(field+".delay.fixedDelay", delay.FixedDelay, false)
		case nil:
			c.fail(field+".delay.fixedDelay", "is missing", "say how long")
		default:
			c.absent(field + ".delay.exponentialDelay")
		}
	}
	if a := f.Abort; a != nil {
		c.percent(field+".abort.percentage", a.Percentage)
		switch kind := a.ErrorType.(type) {
		case *networking.HTTPFaultInjection_Abort_HttpStatus:
			if kind.HttpStatus < 200 || kind.HttpStatus > 599 {
				c.fail(field+".abort.httpStatus", fmt.Sprintf("%d is no status of a response", kind.HttpStatus), "write a number from 200 to 599")
			}
		case *networking.HTTPFaultInjection_Abort_GrpcStatus:
			if !grpcStatuses[kind.GrpcStatus] {
				c.fail(field+".abort.grpcStatus", fmt.Sprintf("%q is no gRPC status", kind.GrpcStatus), "write a name such as UNAVAILABLE")
			}
		case nil:
			c.fail(field+".abort", "it is not said with what", "write httpStatus or grpcStatus in it")
		default:
			c.absent(field + ".abort.http2Error")
		}
	}
}

func (c *checker) cors(field string, p *networking.CorsPolicy) {
	if p == nil {
		return
	}
	for i, origin := range p.AllowOrigins {
		here := fmt.Sprintf("%s.allowOrigins[%d]", field, i)
		if origin.GetMatchType() == nil {
			c.fail(here, "it is not said what is matched", "write exact, prefix or regex in it")
		}
		c.stringMatch(here, origin)
	}
	for i, method := range p.AllowMethods {
		if method != strings.ToUpper(method) || !headerName.MatchString(method) {
			c.fail(fmt.Sprintf("%s.allowMethods[%d]", field, i), fmt.Sprintf("%q is no method", method), "write it in capitals")
		}
	}
	for kind, names := range map[string][]string{"allowHeaders": p.AllowHeaders, "exposeHeaders": p.ExposeHeaders} {
		for i, name := range names {
			if name != "*" {
				c.header(fmt.Sprintf("%s.%s[%d]", field, kind, i), name)
			}
		}
	}
	if age := p.MaxAge; age != nil && (age.AsDuration() < 0 || age.Nanos != 0) {
		c.fail(field+".maxAge", "must be whole seconds", "")
	}
}
