package translate

import (
	"fmt"
	"net/netip"

	"outrider.org/outrider/agent/discovery/object"
)

// Claims keeps what several hosts want of one listener apart: of two routes that match the same the
// first counts, for Envoy refuses a listener with both.
type Claims struct {
	Routes []Connection
	taken  map[claim]Connection
}

// claim is what a filter chain matches.
type claim struct {
	serverName string       // "*": any
	subnet     netip.Prefix // zero: any
}

// Take adds what a host wants, and tells what another one has already, and what cannot be matched.
func (c *Claims) Take(routes []Connection) []object.Problem {
	if c.taken == nil {
		c.taken = map[claim]Connection{}
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
		whole := route // for the names that are free on all subnets
		whole.ServerNames = nil
		for _, name := range names {
			if !CanServerName(name) {
				problems = append(problems, warning(route.Object, route.Field,
					fmt.Sprintf("Envoy cannot tell %s by the server name of TLS", name),
					"write the whole first label as *"))
				continue
			}
			var free []netip.Prefix
			for _, subnet := range subnets {
				by, ok := c.taken[claim{name, subnet}]
				switch {
				case !ok:
					c.taken[claim{name, subnet}] = route
					free = append(free, subnet)
				// an earlier match of the same object is meant to go first
				case by.Object != route.Object:
					problems = append(problems, taken(route, by, name))
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

func (c *Claims) add(route Connection) {
	if len(route.ServerNames) == 1 && route.ServerNames[0] == "*" {
		route.ServerNames = nil
	}
	c.Routes = append(c.Routes, route)
}

// taken tells that connections for a name go elsewhere already.
func taken(route, by Connection, name string) object.Problem {
	return warning(route.Object, route.Field,
		fmt.Sprintf("connections for %s are taken by %s of %s at %s:%d, which counts",
			name, by.Field, by.Object.Key, by.Object.File, by.Object.Line),
		"let one object say where they go")
}
