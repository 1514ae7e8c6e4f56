package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/resource"
)

// routes determines the first route of a virtual host that matches.
func (e *explanation) routes(host *routev3.VirtualHost, origins []resource.Origin) {
	if host.RequireTls != routev3.VirtualHost_NONE && !e.request.TLS {
		e.answer.Outcome, e.answer.Status, e.answer.Location = OutcomeRedirect, 301,
			"https://"+e.authority()+e.request.Path
		e.step("action", "redirect", origins,
			"the virtual host takes requests over TLS only: 301 to "+e.answer.Location)
		return
	}
	for _, r := range host.Routes {
		m := e.match(r.GetMatch())
		if !m.holds {
			continue
		}
		for _, open := range m.open {
			e.unknown("%s, which route %s asks for", open, routeName(r))
		}
		if m.certain() {
			e.step("route", routeName(r), origins,
				append([]string{"matches " + matchText(r.Match)}, settingFacts(host, r)...)...)
			e.action(host, r, origins)
			return
		}
		e.step("route", routeName(r), origins,
			"matches "+matchText(r.Match)+" in part: passed over here as if it did not")
	}
	e.end(OutcomeLocalReply, 404, fmt.Sprintf("no route of virtual host %s matches %s %s", host.Name,
		e.request.Method, e.request.Path),
		"add a route without a match to the end of the VirtualService")
}

// settingFacts names the filters that have settings in a route or its virtual host, except filters
// that the explanation describes in steps of their own.
func settingFacts(host *routev3.VirtualHost, r *routev3.Route) []string {
	var facts []string
	for _, by := range []map[string]*anypb.Any{host.TypedPerFilterConfig, r.TypedPerFilterConfig} {
		for _, name := range slices.Sorted(maps.Keys(by)) {
			fact := "has settings for filter " + name
			if name != faultFilter && name != corsFilter && !slices.Contains(facts, fact) {
				facts = append(facts, fact)
			}
		}
	}
	return facts
}

func routeName(r *routev3.Route) string {
	if r.Name == "" {
		return "(without a name)"
	}
	return r.Name
}

func matchText(m *routev3.RouteMatch) string {
	var criteria []string
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Path:
		criteria = append(criteria, "path "+p.Path)
	case *routev3.RouteMatch_Prefix:
		criteria = append(criteria, "prefix "+p.Prefix)
	case *routev3.RouteMatch_PathSeparatedPrefix:
		criteria = append(criteria, "path "+p.PathSeparatedPrefix+" and below")
	case *routev3.RouteMatch_SafeRegex:
		criteria = append(criteria, "regex "+p.SafeRegex.GetRegex())
	}
	for _, h := range m.GetHeaders() {
		criteria = append(criteria, "header "+h.Name)
	}
	for _, q := range m.GetQueryParameters() {
		criteria = append(criteria, "query parameter "+q.Name)
	}
	return strings.Join(criteria, ", ")
}

// location returns the target URL of a redirect.
func location(r *routev3.RedirectAction, match *routev3.RouteMatch, request Request,
	authority string) string {
	scheme := "http"
	if request.TLS {
		scheme = "https"
	}
	before := scheme
	if r.GetHttpsRedirect() {
		scheme = "https"
	} else if r.GetSchemeRedirect() != "" {
		scheme = r.GetSchemeRedirect()
	}
	host := authority
	if scheme != before && (before == "http" && strings.HasSuffix(host, ":80") ||
		before == "https" && strings.HasSuffix(host, ":443")) {
		host = withoutPort(host)
	}
	if r.HostRedirect != "" {
		host = r.HostRedirect
	}
	if r.PortRedirect != 0 {
		host = fmt.Sprintf("%s:%d", withoutPort(host), r.PortRedirect)
	}
	p, query, _ := strings.Cut(request.Path, "?")
	switch to := r.GetPathRewriteSpecifier().(type) {
	case *routev3.RedirectAction_PathRedirect:
		if p = to.PathRedirect; strings.Contains(p, "?") {
			query = ""
		}
	case *routev3.RedirectAction_PrefixRewrite:
		p = to.PrefixRewrite + p[min(len(p), matchedPrefix(match)):]
	case *routev3.RedirectAction_RegexRewrite:
		p = replaceAll(to.RegexRewrite, p)
	}
	if query != "" && !r.StripQuery {
		p += "?" + query
	}
	return scheme + "://" + host + p
}

// matchedPrefix returns the length of the part of a path that a prefix rewrite replaces.
func matchedPrefix(m *routev3.RouteMatch) int {
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Path:
		return len(p.Path)
	case *routev3.RouteMatch_Prefix:
		return len(p.Prefix)
	case *routev3.RouteMatch_PathSeparatedPrefix:
		return len(p.PathSeparatedPrefix)
	}
	return 0
}
