package translate

import (
	"fmt"
	"net/netip"

	"outrider.org/outrider/agent/discovery/object"
)

// FilterChainMatches assigns filter chain matches of one listener to the routes of several hosts.
// Envoy refuses a listener with two equal matches, so the first route with a match gets it.
type FilterChainMatches struct {
	Routes  []ConnectionRoute
	claimed map[claim]ConnectionRoute
}

// claim is a filter chain match that a route has.
type claim struct {
	serverName string       // SNI; "*": any
	subnet     netip.Prefix // subnet of the destination; zero: any
}

// Add adds the routes of a host. It returns a problem for each match that an earlier route has, and
// for each match that Envoy cannot express.
func (c *FilterChainMatches) Add(routes []ConnectionRoute) []object.Problem {
	if c.claimed == nil {
		c.claimed = map[claim]ConnectionRoute{}
	}
	var problems []object.Problem
	for _, route := range routes {
		names, subnets := route.ServerNames, route.Subnets
		if names == nil {
			names = []string{"*"}
		}
		if subnets == nil {
			subnets = []netip.Prefix{{}}
		}
		// the route, restricted to the server names that no earlier route has on any subnet
		whole := route
		whole.ServerNames = nil
		for _, name := range names {
			if !CanMatchSNI(name) {
				problems = append(problems, route.Object.Warning(route.Field,
					fmt.Sprintf("Envoy cannot tell %s by the server name of TLS", name),
					"write the whole first label as *"))
				continue
			}
			var free []netip.Prefix
			for _, subnet := range subnets {
				by, ok := c.claimed[claim{name, subnet}]
				switch {
				case !ok:
					c.claimed[claim{name, subnet}] = route
					free = append(free, subnet)
				// matches of one object may overlap: the earlier one has precedence, without a
				// problem
				case by.Object != route.Object:
					problems = append(problems, claimed(route, by, name))
				}
			}
			switch {
			case len(free) == len(subnets):
				whole.ServerNames = append(whole.ServerNames, name)
			case len(free) > 0:
				part := route
				part.ServerNames, part.Subnets = []string{name}, free
				c.add(part)
			}
		}
		if len(whole.ServerNames) > 0 {
			c.add(whole)
		}
	}
	return problems
}

func (c *FilterChainMatches) add(route ConnectionRoute) {
	if len(route.ServerNames) == 1 && route.ServerNames[0] == "*" {
		route.ServerNames = nil
	}
	c.Routes = append(c.Routes, route)
}

// claimed returns the problem that connections for a name are already routed by another object.
func claimed(route, by ConnectionRoute, name string) object.Problem {
	return route.Object.Warning(route.Field,
		fmt.Sprintf("connections for %s are taken by %s of %s at %s, which counts", name,
			by.Field, by.Object.Key, by.Object.Position()),
		"let one object say where they go")
}
