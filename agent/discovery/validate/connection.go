package validate

import (
	"fmt"
	"net/netip"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) tlsRoute(field string, r *networking.TLSRoute, hosts []string, mesh bool) {
	if r == nil {
		c.fail(field, "is empty", "write match and route in it")
		return
	}
	if len(r.Match) == 0 {
		c.fail(field+".match", "no match says for which server names the route is",
			"write a match with sniHosts")
	}
	for i, match := range r.Match {
		path := fmt.Sprintf("%s.match[%d]", field, i)
		if match == nil {
			c.fail(path, "the match is empty", "write sniHosts in it")
			continue
		}
		if len(match.SniHosts) == 0 {
			c.fail(path+".sniHosts", "no server name is given", "write at least one")
		}
		for j, name := range match.SniHosts {
			c.serverName(fmt.Sprintf("%s.sniHosts[%d]", path, j), name, hosts, mesh)
		}
		c.connectionMatch(path, match)
	}
	c.connectionRoutes(field, r.Route)
}

func (c *checker) serverName(field, name string, hosts []string, mesh bool) {
	if _, err := netip.ParseAddr(name); err == nil {
		c.warn(field, "clients send no server name for an IP address", "write a host's name")
		return
	}
	if mesh || !isSubsetName(name) {
		c.host(field, name, true)
	}
	for _, host := range hosts {
		if model.HostCovers(host, name) {
			return
		}
	}
	c.fail(field, fmt.Sprintf("%s is not among the hosts of the VirtualService", name),
		"add it to hosts")
}

func (c *checker) tcpRoute(field string, r *networking.TCPRoute) {
	if r == nil {
		c.fail(field, "is empty", "write route in it")
		return
	}
	for i, match := range r.Match {
		path := fmt.Sprintf("%s.match[%d]", field, i)
		if match == nil {
			c.fail(path, "the match is empty", "remove it to take everything")
			continue
		}
		if match.SourceSubnet != "" {
			c.without(path + ".sourceSubnet")
		}
		c.connectionMatch(path, match)
	}
	c.connectionRoutes(field, r.Route)
}

// connectionMatch checks the common fields of TLS and TCP matches.
func (c *checker) connectionMatch(field string, m interface {
	GetDestinationSubnets() []string
	GetPort() uint32
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
	GetGateways() []string
}) {
	for i, subnet := range m.GetDestinationSubnets() {
		_, noBlock := netip.ParsePrefix(subnet)
		if _, err := netip.ParseAddr(subnet); err != nil && noBlock != nil {
			c.fail(fmt.Sprintf("%s.destinationSubnets[%d]", field, i),
				fmt.Sprintf("%q is neither an IP address nor a CIDR block", subnet),
				"write 10.1.0.0/16 or 10.1.2.3")
		}
	}
	c.sources(field, m.GetPort(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetGateways())
}

// sources checks the fields of a match that select ports, workloads and gateways.
func (c *checker) sources(field string, port uint32, labels map[string]string, namespace string,
	gateways []string) {
	if port != 0 {
		c.port(field+".port", port)
	}
	c.labels(field+".sourceLabels", labels)
	if namespace != "" && !isDNSLabel(namespace) {
		c.fail(field+".sourceNamespace", fmt.Sprintf("%q is no namespace", namespace),
			"write letters, digits and -")
	}
	for i, name := range gateways {
		c.gatewayName(fmt.Sprintf("%s.gateways[%d]", field, i), name)
	}
}

func (c *checker) connectionRoutes(field string, routes []*networking.RouteDestination) {
	if len(routes) == 0 {
		c.fail(field+".route", "no destination is given", "write at least one")
	}
	weights := make([]int32, len(routes))
	for i, to := range routes {
		path := fmt.Sprintf("%s.route[%d]", field, i)
		c.destination(path+".destination", to.GetDestination())
		weights[i] = to.GetWeight()
	}
	c.weights(field+".route", weights)
}

// weights checks the weights of all destinations of one route.
func (c *checker) weights(field string, weights []int32) {
	const heaviest = 1<<32 - 1
	total := int64(0)
	for i, weight := range weights {
		c.natural(fmt.Sprintf("%s[%d].weight", field, i), weight)
		total += int64(weight)
	}
	switch {
	case len(weights) > 1 && total == 0:
		c.fail(field, "no destination has a weight", "give each a weight")
	case total > heaviest:
		c.fail(field, fmt.Sprintf("the weights add up to more than %d", heaviest),
			"write smaller ones in the same proportion")
	}
}
