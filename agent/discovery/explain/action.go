package explain

import (
	"fmt"
	"regexp"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"outrider.org/outrider/agent/resource"
)

// redirectCodes maps Envoy's redirect codes to HTTP status codes.
var redirectCodes = map[routev3.RedirectAction_RedirectResponseCode]int{
	routev3.RedirectAction_MOVED_PERMANENTLY: 301, routev3.RedirectAction_FOUND: 302,
	routev3.RedirectAction_SEE_OTHER:          303,
	routev3.RedirectAction_TEMPORARY_REDIRECT: 307, routev3.RedirectAction_PERMANENT_REDIRECT: 308,
}

// action explains the action of a route: fault, preflight, redirect, direct response or forwarding.
func (e *explanation) action(host *routev3.VirtualHost, r *routev3.Route,
	origins []resource.Origin) {
	if e.fault(host, r, origins) || e.preflight(host, r, origins) {
		return
	}
	switch to := r.Action.(type) {
	case *routev3.Route_Redirect:
		e.answer.Outcome, e.answer.Status = OutcomeRedirect, redirectCodes[to.Redirect.ResponseCode]
		e.answer.Location = location(to.Redirect, r.Match, e.request, e.authority())
		e.step("action", "redirect", origins, fmt.Sprintf("%d to %s", e.answer.Status,
			e.answer.Location))
	case *routev3.Route_DirectResponse:
		e.answer.Outcome, e.answer.Status = OutcomeLocalReply, int(to.DirectResponse.Status)
		e.answer.Body = to.DirectResponse.GetBody().GetInlineString()
		if e.answer.Body == "" {
			e.answer.Body = string(to.DirectResponse.GetBody().GetInlineBytes())
		}
		e.step("action", "direct response", origins, fmt.Sprintf("status %d, %d bytes",
			e.answer.Status, len(e.answer.Body)))
		if host.Name == "block_all" {
			e.answer.Reason = fmt.Sprintf(
				"no host %s is known on port %d, and what nobody knows is blocked", e.request.Host,
				e.servicePort())
			e.answer.Fix = e.hostFix()
			if e.proxy.Captured {
				e.answer.Fix += ", or outboundTrafficPolicy ALLOW_ANY"
			}
		}
	case *routev3.Route_Route:
		e.send(r, to.Route, origins)
	default:
		e.end(OutcomeLocalReply, 0, "the route does what an extension says", "")
	}
}

// send explains how a route forwards the request.
func (e *explanation) send(r *routev3.Route, to *routev3.RouteAction, origins []resource.Origin) {
	var targets []WeightedCluster
	switch by := to.ClusterSpecifier.(type) {
	case *routev3.RouteAction_Cluster:
		targets = []WeightedCluster{{Cluster: by.Cluster, Percent: 100}}
	case *routev3.RouteAction_ClusterHeader:
		name, there := e.header(by.ClusterHeader)
		if !there {
			e.end(OutcomeLocalReply, 503,
				"the route sends to the cluster that header "+by.ClusterHeader+" names, which the request "+
					"does not have",
				"send the header")
			return
		}
		targets = []WeightedCluster{{Cluster: name, Percent: 100}}
	case *routev3.RouteAction_WeightedClusters:
		var total uint32
		for _, c := range by.WeightedClusters.Clusters {
			total += c.GetWeight().GetValue()
		}
		for _, c := range by.WeightedClusters.Clusters {
			if c.GetWeight().GetValue() > 0 {
				targets = append(targets, WeightedCluster{Cluster: c.Name,
					Percent: percentOf(c.Weight.Value, total)})
			}
		}
	default:
		e.end(OutcomeLocalReply, 0, "the route sends where an extension says", "")
		return
	}
	for _, m := range to.RequestMirrorPolicies {
		share := 100.0
		if m.GetRuntimeFraction() != nil {
			share = percent(m.RuntimeFraction.DefaultValue)
		}
		e.answer.Mirrors = append(e.answer.Mirrors, WeightedCluster{Cluster: m.Cluster,
			Percent: share})
	}
	facts := append(targetFacts(targets), e.forwardFacts(r, to)...)
	e.step("action", "forward", origins, facts...)
	e.forward(targets, OutcomeLocalReply, 503)
	for _, m := range e.answer.Mirrors {
		e.cluster(m.Cluster)
	}
}

// forwardFacts describes how a route forwards requests: rewrites, time-out, retries, headers,
// mirrors.
func (e *explanation) forwardFacts(r *routev3.Route, to *routev3.RouteAction) []string {
	var facts []string
	p, query, hasQuery := strings.Cut(e.request.Path, "?")
	if hasQuery {
		query = "?" + query
	}
	if to.PrefixRewrite != "" {
		facts = append(facts, "rewrites the path to "+to.PrefixRewrite+p[min(len(p),
			matchedPrefix(r.Match)):]+query)
	} else if to.RegexRewrite != nil {
		facts = append(facts, "rewrites the path to "+replaceAll(to.RegexRewrite, p)+query)
	}
	if host := to.GetHostRewriteLiteral(); host != "" {
		facts = append(facts, "rewrites the host to "+host)
	} else if to.GetAutoHostRewrite().GetValue() {
		facts = append(facts, "rewrites the host to that of the endpoint")
	}
	switch timeout := to.GetTimeout(); {
	case timeout == nil:
		facts = append(facts, "times out after 15s (Envoy's default)")
	case timeout.AsDuration() > 0:
		facts = append(facts, fmt.Sprintf("times out after %v", timeout.AsDuration()))
	}
	if retry := to.GetRetryPolicy(); retry != nil {
		text := fmt.Sprintf("retries up to %d times on %s", retry.GetNumRetries().GetValue(),
			retry.RetryOn)
		if per := retry.GetPerTryTimeout(); per != nil {
			text += fmt.Sprintf(", %v each", per.AsDuration())
		}
		facts = append(facts, text)
	}
	for _, by := range to.HashPolicy {
		fact := "keeps to an endpoint by hash"
		if cookie := by.GetCookie().GetName(); cookie != "" {
			fact += " of cookie " + cookie
		}
		facts = append(facts, fact)
	}
	if n := len(r.RequestHeadersToAdd) + len(r.RequestHeadersToRemove); n > 0 {
		facts = append(facts, "changes "+count(n, "header")+" of the request")
	}
	if n := len(r.ResponseHeadersToAdd) + len(r.ResponseHeadersToRemove); n > 0 {
		facts = append(facts, "changes "+count(n, "header")+" of the answer")
	}
	for _, m := range e.answer.Mirrors {
		facts = append(facts, fmt.Sprintf("mirrors %g %% to %s", m.Percent, m.Cluster))
	}
	return facts
}

func targetFacts(targets []WeightedCluster) []string {
	var facts []string
	for _, t := range targets {
		if len(targets) == 1 {
			return []string{"to " + t.Cluster}
		}
		facts = append(facts, fmt.Sprintf("%.4g %% to %s", t.Percent, t.Cluster))
	}
	return facts
}

// percent converts a fraction to a percentage.
func percent(f *typev3.FractionalPercent) float64 {
	parts := map[typev3.FractionalPercent_DenominatorType]float64{
		typev3.FractionalPercent_HUNDRED:      1,
		typev3.FractionalPercent_TEN_THOUSAND: 100, typev3.FractionalPercent_MILLION: 10000}
	return float64(f.GetNumerator()) / parts[f.GetDenominator()]
}

// replaceAll replaces every match of a rewrite's regular expression, as Envoy does; \1 in the
// substitution is the first group.
func replaceAll(rewrite *matcherv3.RegexMatchAndSubstitute, text string) string {
	compiled, err := regexp.Compile(rewrite.GetPattern().GetRegex())
	if err != nil {
		return text
	}
	substitution := strings.ReplaceAll(rewrite.Substitution, "$", "$$")
	return compiled.ReplaceAllString(text, group.ReplaceAllString(substitution, "$${$1}"))
}

// group matches a reference to a group in RE2's syntax, such as \1.
var group = regexp.MustCompile(`\\(\d)`)
