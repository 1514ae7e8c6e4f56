package view

import (
	"fmt"
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// connections collects how a gateway's listener routes connections that are not parsed as HTTP.
type connections struct {
	listener *gatewayListener
	view     *ProxyView
	passed   translate.FilterChainMatches // routes of TLS that the servers do not terminate
	chains   []translate.GatewayFilterChain
	origins  []resource.Origin
	problems []object.Problem
	reads    map[string]struct{}
}

// add adds the routes of a server.
func (c *connections) add(s server) error {
	router := &translate.RouteTranslator{Mesh: c.view.world, Node: c.view.node,
		Gateways: []string{s.gateway()}, Port: s.spec.Port.Number, TLS: s.class() == model.TLS}
	own := translate.FilterChainMatches{}
	before, said := len(c.passed.Routes), false
	for _, routing := range c.view.world.GatewayVirtualServices(s.gateway(),
		c.view.node.Namespace) {
		if len(s.meet(routing)) == 0 {
			continue
		}
		if s.isPassthrough() {
			routes := router.TLSRoutes(routing)
			said = said || len(routes) > 0
			c.problems = append(c.problems, c.passed.Add(c.free(s, routes))...)
			continue
		}
		routes := router.TCPRoutes(routing)
		said = said || len(routes) > 0
		c.problems = append(c.problems, own.Add(routes)...)
	}
	problems, reads := router.TakeFindings()
	c.problems = append(c.problems, problems...)
	for _, host := range reads {
		c.reads[host] = struct{}{}
	}
	if s.isPassthrough() {
		own.Routes = c.passed.Routes[before:]
	}
	if !said {
		kind := map[bool]string{true: "tls", false: "tcp"}[s.isPassthrough()]
		c.problems = append(c.problems,
			s.problem("port",
				"no VirtualService routes its connections: nothing listens for the server",
				"add one with "+kind+" routes, one of the server's hosts and the gateway"))
	}
	for _, route := range own.Routes {
		if err := c.chain(s, route); err != nil {
			return fmt.Errorf("%s of %s: %w", route.Field, route.Object.Key, err)
		}
	}
	return nil
}

// free removes from routes the server names for which another server terminates TLS.
func (c *connections) free(s server, routes []translate.ConnectionRoute) []translate.ConnectionRoute {
	var out []translate.ConnectionRoute
	for _, route := range routes {
		names := route.ServerNames
		if names == nil {
			names = []string{"*"}
		}
		var free []string
		for _, name := range names {
			if by, ok := c.listener.names[name]; ok && !by.isPassthrough() {
				c.problems = append(c.problems,
					s.problem("hosts",
						fmt.Sprintf("TLS for %s on port %d is answered by %s and not passed on",
							name, c.listener.port, by.object.Position()),
						"name each host in one server of a port only"))
				continue
			}
			free = append(free, name)
		}
		if len(free) > 0 {
			route.ServerNames = free
			out = append(out, route)
		}
	}
	return out
}

func (c *connections) chain(s server, route translate.ConnectionRoute) error {
	filters, err := route.Filters(&c.view.telemetry.client)
	if err != nil {
		return err
	}
	chain := translate.GatewayFilterChain{Filters: filters}
	switch {
	case s.isPassthrough():
		chain.ServerNames = route.ServerNames
	case s.class() == model.TLS:
		names, problems := s.serverNames()
		c.problems = append(c.problems, problems...)
		if len(names) == 0 {
			return nil
		}
		chain.ServerNames, chain.TLS = names, s.spec.Tls
	}
	c.chains = append(c.chains, chain)
	c.origin(route)
	return nil
}

// origin adds the origin of a route to those of the listener.
func (c *connections) origin(route translate.ConnectionRoute) {
	if origin := route.Object.Origin(); !slices.Contains(c.origins, origin) {
		c.origins = append(c.origins, origin)
	}
}
