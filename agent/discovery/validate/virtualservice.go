package validate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) virtualService(v *networking.VirtualService) {
	if len(v.Hosts) == 0 {
		c.warn("hosts", "a VirtualService without hosts is a delegate, which this version of Outrider does not carry out: it has no effect", "name its hosts")
	}
	mesh := len(v.Gateways) == 0 || slices.Contains(v.Gateways, model.MeshGateway)
	seen := map[string]bool{}
	for i, host := range v.Hosts {
		field := fmt.Sprintf("hosts[%d]", i)
		if host == "*" {
			if mesh {
				c.fail(field, "* is not taken by sidecars (gateway mesh)", "name the hosts, or gateways without mesh")
			}
		} else if _, err := netip.ParsePrefix(host); err != nil || !strings.Contains(host, "/") {
			c.hostOrAddress(field, host)
		}
		if seen[host] {
			c.fail(field, fmt.Sprintf("%s is given twice", host), "remove one")
		}
		seen[host] = true
	}
	for i, name := range v.Gateways {
		c.gatewayName(fmt.Sprintf("gateways[%d]", i), name)
	}
	c.exportTo(v.ExportTo)
	if len(v.Tls) > 0 {
		c.absent("tls")
	}
	if len(v.Tcp) > 0 {
		c.absent("tcp")
	}
	if len(v.Http)+len(v.Tls)+len(v.Tcp) == 0 {
		c.fail("http", "the VirtualService has no route", "write at least one under http")
	}
	all := -1 // the first route that takes everything
	for i, route := range v.Http {
		field := fmt.Sprintf("http[%d]", i)
		c.httpRoute(field, route)
		if all >= 0 {
			c.warn(field, fmt.Sprintf("cannot be reached: http[%d] takes every request", all), "move it up")
		} else if len(route.Match) == 0 {
			all = i
		}
	}
}

func (c *checker) gatewayName(field, name string) {
	namespace, short, ok := strings.Cut(name, "/")
	if !ok {
		namespace, short = ".", name
	}
	if namespace != "." && !dnsLabel.MatchString(namespace) || whyNoHost(short, false) != "" {
		c.fail(field, fmt.Sprintf("%q is no gateway's name", name), "write name or namespace/name")
	}
}

func (c *checker) httpRoute(field string, r *networking.HTTPRoute) {
	for i, match := range r.Match {
		c.match(fmt.Sprintf("%s.match[%d]", field, i), match)
	}
	actions := 0
	for _, given := range []bool{len(r.Route) > 0, r.Redirect != nil, r.DirectResponse != nil, r.Delegate != nil} {
		if given {
			actions++
		}
	}
	switch {
	case actions == 0:
		c.fail(field, "the route goes nowhere", "write route, redirect or directResponse")
	case actions > 1:
		c.fail(field, "route, redirect, directResponse and delegate exclude each other", "keep one")
	}
	if r.Delegate != nil {
		c.absent(field + ".delegate")
	}
	if len(r.Route) == 0 {
		for name, given := range map[string]bool{"rewrite": r.Rewrite != nil, "timeout": r.Timeout != nil, "retries": r.Retries != nil,
			"mirror": r.Mirror != nil, "mirrors": len(r.Mirrors) > 0, "fault": r.Fault != nil && r.Redirect != nil} {
			if given && actions == 1 && r.Delegate == nil {
				c.fail(field+"."+name, "makes no sense without a destination", "remove it")
			}
		}
	}
	c.destinations(field, r.Route)
	c.redirect(field+".redirect", r.Redirect)
	c.directResponse(field+".directResponse", r.DirectResponse)
	c.rewrite(field+".rewrite", r.Rewrite)
	c.duration(field+".timeout", r.Timeout, true)
	c.retries(field+".retries", r.Retries)
	c.headers(field+".headers", r.Headers)
	c.fault(field+".fault", r.Fault)
	c.cors(field+".corsPolicy", r.CorsPolicy)
	c.mirrors(field, r)
}

func (c *checker) mirrors(field string, r *networking.HTTPRoute) {
	if r.Mirror != nil {
		if len(r.Mirrors) > 0 {
			c.fail(field+".mirror", "excludes mirrors, and both are given", "keep mirrors")
		}
		c.destination(field+".mirror", r.Mirror)
	}
	c.percent(field+".mirrorPercentage", r.MirrorPercentage)
	if old := r.MirrorPercent; old.GetValue() > 100 { //nolint:staticcheck // deprecated, still valid YAML
		c.fail(field+".mirrorPercent", fmt.Sprintf("%d is no percentage", old.Value), "write a number from 0 to 100")
	}
	for i, m := range r.Mirrors {
		c.destination(fmt.Sprintf("%s.mirrors[%d].destination", field, i), m.GetDestination())
		c.percent(fmt.Sprintf("%s.mirrors[%d].percentage", field, i), m.GetPercentage())
	}
}

func (c *checker) destinations(field string, routes []*networking.HTTPRouteDestination) {
	total := int64(0)
	for i, to := range routes {
		field := fmt.Sprintf("%s.route[%d]", field, i)
		c.destination(field+".destination", to.GetDestination())
		c.natural(field+".weight", to.GetWeight())
		c.headers(field+".headers", to.GetHeaders())
		total += int64(to.GetWeight())
	}
	const heaviest = 1<<32 - 1
	switch {
	case len(routes) > 1 && total == 0:
		c.fail(field+".route", "no destination has a weight", "give each a weight")
	case total > heaviest:
		c.fail(field+".route", fmt.Sprintf("the weights add up to more than %d", heaviest), "")
	}
}

func (c *checker) destination(field string, d *networking.Destination) {
	if d == nil {
		c.fail(field, "is missing", "write host in it")
		return
	}
	if d.Host == "*" {
		c.fail(field+".host", "* is no destination", "name one host")
	} else {
		c.hostOrAddress(field+".host", d.Host)
	}
	if d.Subset != "" && !dnsLabel.MatchString(d.Subset) {
		c.fail(field+".subset", fmt.Sprintf("%q is no subset's name", d.Subset), "write letters, digits and -")
	}
	if d.Port != nil {
		c.port(field+".port.number", d.Port.Number)
	}
}

// retryConditions are Envoy's, for HTTP and gRPC.
var retryConditions = []string{"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited", "retriable-4xx",
	"refused-stream", "retriable-status-codes", "retriable-headers", "http3-post-connect-failure", "cancelled", "deadline-exceeded", "internal",
	"resource-exhausted", "unavailable"}

func (c *checker) retries(field string, r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	c.natural(field+".attempts", r.Attempts)
	if r.Attempts == 0 && (r.PerTryTimeout != nil || r.RetryOn != "" || r.RetryRemoteLocalities != nil || r.Backoff != nil) {
		c.fail(field+".attempts", "0 turns retries off, and the rest makes no sense", "remove the rest, or write a number")
	}
	c.duration(field+".perTryTimeout", r.PerTryTimeout, false)
	c.duration(field+".backoff", r.Backoff, false)
	for _, part := range strings.Split(r.RetryOn, ",") {
		part = strings.TrimSpace(part)
		status := len(part) == 3 && strings.Trim(part, "0123456789") == "" && part >= "100" && part < "600"
		if r.RetryOn != "" && !status && !slices.Contains(retryConditions, part) {
			c.fail(field+".retryOn", fmt.Sprintf("%q is no condition", part), "write status codes, or some of "+strings.Join(retryConditions, ", "))
		}
	}
	if r.RetryRemoteLocalities != nil {
		c.without(field + ".retryRemoteLocalities")
	}
}
