package agent

import (
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/dns"
)

// publishNames passes the hosts of the embedded discovery server to the DNS proxy. It does nothing
// if an upstream server is in use. It also does nothing before the mesh files have been read: the
// proxy would answer that no host exists.
func publishNames(state *reloadState, server *discovery.Server, resolver *dns.Server) {
	c := state.InForce().Config
	if len(c.Discovery.Addresses) > 0 {
		return
	}
	select {
	case <-server.Ready():
	default:
		return
	}
	names := []dns.Name{}
	for _, found := range server.DNSNames(c.Node.Labels) {
		n := dns.Name{Host: found.Host, Addresses: found.Addresses}
		for _, p := range found.Ports {
			n.Ports = append(n.Ports, dns.Port{Name: p.Name, Number: uint16(p.Number)})
		}
		names = append(names, n)
	}
	resolver.SetNames(names)
}

// applyNameTable returns the function that passes the hosts of an upstream server to the DNS proxy.
func applyNameTable(resolver *dns.Server) func(resources []*anypb.Any, _ []string) error {
	return func(resources []*anypb.Any, _ []string) error {
		for _, one := range resources {
			names, err := dns.ParseNameTable(one.GetValue())
			if err != nil {
				return err
			}
			resolver.SetNames(names)
		}
		return nil
	}
}

// newDNS returns the DNS proxy of a node.
func newDNS(b *base, c *config.Config, node config.Node) *dns.Server {
	options := dns.Options{Listen: c.DNS.Listen, Settings: c.DNS,
		Node:       dns.Node{Namespace: node.Namespace, Domain: node.Domain},
		Conditions: b.board, Logger: b.logOf("dns"), Store: b.store}
	if c.DNS.SystemdResolved {
		options.ResolvedHelperSocket = "/run/outrider/resolved.sock" // one socket for all instances
	}
	return dns.New(options)
}
