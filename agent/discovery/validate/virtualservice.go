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
	if !c.most("hosts", len(v.Hosts), mostVirtualHosts) {
		return
	}
	delegate := len(v.Hosts) == 0
	if delegate {
		for field, set := range map[string]bool{"gateways": len(v.Gateways) > 0,
			"tls": len(v.Tls) > 0, "tcp": len(v.Tcp) > 0} {
			if set {
				c.fail(field, "a VirtualService without hosts is a delegate, which has http alone",
					"remove it, or name the hosts")
			}
		}
	}
	mesh := len(v.Gateways) == 0 || slices.Contains(v.Gateways, model.MeshGateway)
	c.sidecars = mesh
	c.routedHosts(v.Hosts, mesh)
	for i, name := range v.Gateways {
		c.gatewayName(fmt.Sprintf("gateways[%d]", i), name)
	}
	c.exportTo(v.ExportTo)
	if len(v.Http)+len(v.Tls)+len(v.Tcp) == 0 {
		c.fail("http", "the VirtualService has no route",
			"write at least one under http, tls or tcp")
	}
	for i, route := range v.Http {
		if field := fmt.Sprintf("http[%d]", i); route == nil {
			c.fail(field, "is empty", "write route, redirect, directResponse or delegate in it")
		} else {
			c.httpRoute(field, route, delegate)
		}
	}
	for i, route := range v.Tls {
		c.tlsRoute(fmt.Sprintf("tls[%d]", i), route, v.Hosts, mesh)
	}
	for i, route := range v.Tcp {
		c.tcpRoute(fmt.Sprintf("tcp[%d]", i), route)
	}
	if len(c.findings) == 0 || !slices.ContainsFunc(c.findings, isError) {
		c.unreachable(v)
	}
}

func (c *checker) routedHosts(hosts []string, mesh bool) {
	for i, host := range hosts {
		field := fmt.Sprintf("hosts[%d]", i)
		if host == "*" && mesh {
			c.fail(field, "* is not taken by sidecars (gateway mesh)",
				"name the hosts, or gateways without mesh")
		} else if mesh || !isSubsetName(host) {
			c.hostOrAddress(field, host)
		}
		for _, other := range hosts[:i] {
			if model.HostCovers(other, host) || model.HostCovers(host, other) {
				c.fail(field, fmt.Sprintf("%s and %s overlap in one VirtualService", other, host),
					"remove one")
				break
			}
		}
	}
}

// isSubsetName reports whether a host has the form of the server names between Istio's proxies:
// outbound_.80_.v1_.api.example.com.
func isSubsetName(host string) bool {
	return strings.HasPrefix(host, "outbound_.") && strings.Count(host, "_.") >= 3
}

func (c *checker) gatewayName(field, name string) {
	namespace, short, ok := strings.Cut(name, "/")
	switch {
	case ok && isDNSLabel(namespace) && isDNSLabel(short):
	case !ok && whyNoHost(name, false) == "":
		if parts := strings.Split(name, "."); len(parts) > 1 {
			c.warn(field, "names a gateway in the old form", fmt.Sprintf("write %s/%s", parts[1],
				parts[0]))
		}
	default:
		c.fail(field, fmt.Sprintf("%q is no gateway's name", name), "write name or namespace/name")
	}
}

func (c *checker) httpRoute(field string, r *networking.HTTPRoute, delegate bool) {
	for i, match := range r.Match {
		c.match(fmt.Sprintf("%s.match[%d]", field, i), match)
	}
	c.actions(field, r, delegate)
	c.destinations(field, r.Route)
	c.redirect(field+".redirect", r.Redirect, r.Match)
	c.directResponse(field+".directResponse", r.DirectResponse)
	c.rewrite(field+".rewrite", r.Rewrite)
	c.duration(field+".timeout", r.Timeout, false)
	c.retries(field+".retries", r.Retries)
	c.headers(field+".headers", r.Headers)
	c.oneAuthority(field, r)
	c.fault(field+".fault", r.Fault)
	c.cors(field+".corsPolicy", r.CorsPolicy)
	c.mirrors(field, r)
}

// actions checks that a route has exactly one action, and warns of fields that have no effect with
// it.
func (c *checker) actions(field string, r *networking.HTTPRoute, delegate bool) {
	if d := r.Delegate; d != nil {
		switch {
		case delegate:
			c.fail(field+".delegate", "a delegate cannot delegate",
				"write the routes here, or let the root delegate to both")
		case len(r.Route) > 0 || r.Redirect != nil:
			c.fail(field, "delegate excludes route and redirect", "keep one")
		}
		if whyNoHost(d.Name, false) != "" {
			c.fail(field+".delegate.name", fmt.Sprintf("%q is no VirtualService's name", d.Name),
				"name a VirtualService without hosts")
		}
		if d.Namespace != "" && !isDNSLabel(d.Namespace) {
			c.fail(field+".delegate.namespace", fmt.Sprintf("%q is no namespace", d.Namespace),
				"write letters, digits and -")
		}
		return
	}
	actions := 0
	for _, set := range []bool{len(r.Route) > 0, r.Redirect != nil, r.DirectResponse != nil} {
		if set {
			actions++
		}
	}
	switch {
	case actions == 0:
		c.fail(field, "the route goes nowhere", "write route, redirect, directResponse or delegate")
	case actions > 1:
		c.fail(field, "route, redirect and directResponse exclude each other", "keep one")
	case len(r.Route) == 0:
		for name, set := range map[string]bool{"rewrite": r.Rewrite != nil,
			"fault": r.Fault != nil} {
			if set {
				c.fail(field+"."+name, "makes no sense without a destination", "remove it")
			}
		}
		for name, set := range map[string]bool{"timeout": r.Timeout != nil,
			"retries": r.Retries != nil, "mirror": r.Mirror != nil, "mirrors": len(r.Mirrors) > 0} {
			if set {
				c.warn(field+"."+name, "has no effect without a destination", "remove it")
			}
		}
	}
}

func (c *checker) mirrors(field string, r *networking.HTTPRoute) {
	if r.Mirror != nil {
		if len(r.Mirrors) > 0 {
			c.fail(field+".mirror", "excludes mirrors, and both are given", "keep mirrors")
		}
		c.destination(field+".mirror", r.Mirror)
	}
	c.percent(field+".mirrorPercentage", r.MirrorPercentage)
	if old := r.MirrorPercent; old != nil { //nolint:staticcheck // deprecated, still valid YAML
		if old.Value > 100 {
			c.fail(field+".mirrorPercent", fmt.Sprintf("%d is no percentage", old.Value),
				"write a number from 0 to 100")
		}
		c.warn(field+".mirrorPercent", "is the old form of mirrorPercentage",
			"write mirrorPercentage: {value: N}")
	}
	//nolint:staticcheck // deprecated, still valid YAML
	if r.Mirror == nil && (r.MirrorPercentage != nil || r.MirrorPercent != nil) {
		c.warn(field+".mirrorPercentage", "has no effect without mirror",
			"write percentage in each of mirrors")
	}
	for i, m := range r.Mirrors {
		c.destination(fmt.Sprintf("%s.mirrors[%d].destination", field, i), m.GetDestination())
		c.percent(fmt.Sprintf("%s.mirrors[%d].percentage", field, i), m.GetPercentage())
	}
}

func (c *checker) destinations(field string, routes []*networking.HTTPRouteDestination) {
	weights := make([]int32, len(routes))
	for i, to := range routes {
		field := fmt.Sprintf("%s.route[%d]", field, i)
		c.destination(field+".destination", to.GetDestination())
		c.headers(field+".headers", to.GetHeaders())
		weights[i] = to.GetWeight()
	}
	c.weights(field+".route", weights)
}

func (c *checker) destination(field string, d *networking.Destination) {
	if d == nil {
		c.fail(field, "is missing", "write host in it")
		return
	}
	if _, err := netip.ParseAddr(d.Host); err == nil || d.Host == "*" {
		c.fail(field+".host", fmt.Sprintf("%s is no destination", d.Host),
			"name the host of a service")
	} else {
		c.host(field+".host", d.Host, true)
	}
	if d.Subset != "" && !isDNSLabel(d.Subset) {
		c.fail(field+".subset", fmt.Sprintf("%q is no subset's name", d.Subset),
			"write letters, digits and -")
	}
	if d.Port != nil {
		c.port(field+".port.number", d.Port.Number)
	}
}
