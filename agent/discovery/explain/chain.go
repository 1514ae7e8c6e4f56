package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/rbac"
)

// Names of listener filters, which detect the properties that filter chains match.
const (
	tlsInspector  = "envoy.filters.listener.tls_inspector"
	httpInspector = "envoy.filters.listener.http_inspector"
)

// connection holds the properties of a connection on which filter chains match.
type connection struct {
	port      uint32
	address   netip.Addr
	name      string // server name (SNI); "" if no listener filter detects it
	transport string
	protocols []string // application protocols, by ALPN or as detected
}

func (e *explanation) inspect(d *listener) connection {
	c := connection{port: e.request.Port, address: e.request.DestinationAddress, transport: "raw_buffer"}
	if !c.address.IsValid() {
		c.address = d.address
	}
	has := func(name string) bool {
		return slices.ContainsFunc(d.ListenerFilters, func(f *listenerv3.ListenerFilter) bool {
			return f.Name == name && !disabled(f.FilterDisabled, e.request.Port)
		})
	}
	switch {
	case e.request.TLS && has(tlsInspector):
		c.transport, c.protocols, c.name = "tls", []string{"h2", "http/1.1"}, e.serverName()
		// clients with a mesh identity are proxies, which offer Istio's protocols by ALPN
		if e.request.ClientSPIFFEID != "" {
			c.protocols = append([]string{"istio-http/1.1", "istio"}, c.protocols...)
		}
	case !e.request.TLS && has(httpInspector):
		c.protocols = []string{"http/1.1"}
	}
	return c
}

// disabled reports whether a listener filter is disabled for connections to a port.
func disabled(rule *listenerv3.ListenerFilterChainMatchPredicate, port uint32) bool {
	if ports := rule.GetDestinationPortRange(); ports != nil {
		return int32(port) >= ports.Start && int32(port) < ports.End
	}
	return rule.GetAnyMatch() || slices.ContainsFunc(rule.GetOrMatch().GetRules(),
		func(r *listenerv3.ListenerFilterChainMatchPredicate) bool {
			return disabled(r, port)
		})
}

// chooseChain returns the filter chain that Envoy selects; nil if none matches. Each criterion in
// turn selects the filter chains that match it most specifically; if none does, those without the
// criterion. It does not backtrack.
func chooseChain(chains []*listenerv3.FilterChain, c connection) *listenerv3.FilterChain {
	for _, criterion := range []func(*listenerv3.FilterChainMatch) (closeness int, constrained bool){
		func(m *listenerv3.FilterChainMatch) (int, bool) {
			return yes(m.GetDestinationPort().GetValue() == c.port), m.GetDestinationPort() != nil
		},
		func(m *listenerv3.FilterChainMatch) (int, bool) {
			closest := 0
			for _, block := range m.GetPrefixRanges() {
				address, err := netip.ParseAddr(block.AddressPrefix)
				if err != nil {
					continue
				}
				if prefix := netip.PrefixFrom(address,
					int(block.PrefixLen.GetValue())); prefix.Contains(c.address) {
					closest = max(closest, 1+prefix.Bits())
				}
			}
			return closest, len(m.GetPrefixRanges()) > 0
		},
		func(m *listenerv3.FilterChainMatch) (int, bool) {
			closest := 0
			for _, name := range m.GetServerNames() {
				name = strings.ToLower(name)
				if suffix, wild := strings.CutPrefix(name, "*"); c.name != "" &&
					(name == c.name || wild && strings.HasSuffix(c.name, suffix)) {
					closest = max(closest, 2*len(name)+yes(name == c.name))
					if name == c.name {
						closest = 1 << 20
					}
				}
			}
			return closest, len(m.GetServerNames()) > 0
		},
		func(m *listenerv3.FilterChainMatch) (int, bool) {
			return yes(m.GetTransportProtocol() == c.transport), m.GetTransportProtocol() != ""
		},
		func(m *listenerv3.FilterChainMatch) (int, bool) {
			return yes(slices.ContainsFunc(m.GetApplicationProtocols(),
					func(p string) bool { return slices.Contains(c.protocols, p) })),
				len(m.GetApplicationProtocols()) > 0
		},
	} {
		var best, indifferent []*listenerv3.FilterChain
		highest := 0
		for _, chain := range chains {
			switch closeness, constrained := criterion(chain.GetFilterChainMatch()); {
			case !constrained:
				indifferent = append(indifferent, chain)
			case closeness > highest:
				highest, best = closeness, []*listenerv3.FilterChain{chain}
			case closeness == highest && closeness > 0:
				best = append(best, chain)
			}
		}
		if chains = best; len(best) == 0 {
			chains = indifferent
		}
	}
	// The remaining filter chains differ only in matches on the client's address, which is unknown.
	// Those without such matches are preferred.
	slices.SortStableFunc(chains, func(a, b *listenerv3.FilterChain) int {
		return yes(matchesSource(a)) - yes(matchesSource(b))
	})
	if len(chains) == 0 {
		return nil
	}
	return chains[0]
}

func matchesSource(c *listenerv3.FilterChain) bool {
	m := c.GetFilterChainMatch()
	return len(m.GetSourcePrefixRanges())+len(m.GetSourcePorts())+
		len(m.GetDirectSourcePrefixRanges()) > 0 || m.GetSourceType() != 0
}

func yes(b bool) int {
	if b {
		return 1
	}
	return 0
}

// chain determines the filter chain and evaluates its filters.
func (e *explanation) chain(d *listener) {
	c := e.inspect(d)
	chain := chooseChain(d.FilterChains, c)
	if chain == nil {
		chain = d.DefaultFilterChain
	}
	if slices.ContainsFunc(d.FilterChains, matchesSource) {
		e.unknown("the client's address, which filter chains of %s ask for", d.Name)
	}
	if chain == nil {
		reason, fix := fmt.Sprintf("no filter chain of listener %s takes the connection", d.Name),
			"add the host to what the listener is for"
		names, encrypted := serverNames(d.Listener), c
		encrypted.transport = "tls"
		if len(names) > 0 {
			reason += "; it has the server names " + list(names)
			fix = fmt.Sprintf("add %s to the hosts of a server, service or TLS match of port %d",
				e.request.Host, d.port)
		}
		if !e.request.TLS && (len(names) > 0 || chooseChain(d.FilterChains, encrypted) != nil) {
			reason, fix = fmt.Sprintf("listener %s takes TLS only, and the request comes without",
				d.Name), "ask with --tls, or use https"
			for _, o := range d.resource.Origins {
				if o.Kind == string(object.PeerAuthentication) {
					reason += fmt.Sprintf("; mutual TLS by %s", o)
					fix = "use a client with a certificate of the mesh, or set PERMISSIVE"
				}
			}
		}
		e.end(OutcomeConnectionClosed, 0, reason, fix)
		return
	}
	facts := []string{"matches " + chainText(chain.FilterChainMatch)}
	if chain.TransportSocket != nil {
		facts = append(facts, e.downstream(chain))
	}
	e.step("filter chain", chain.Name, d.resource.Origins, facts...)
	if chain.TransportSocket != nil && !e.request.TLS {
		e.end(OutcomeConnectionClosed, 0, "the filter chain ends TLS, and the request comes without",
			"ask with --tls, or use https")
		return
	}
	e.terminated, e.destination = chain.TransportSocket != nil, c.address
	if c.address.IsUnspecified() {
		e.destination = netip.Addr{}
	}
	if e.identified(chain) {
		e.filters(chain, d)
	}
}

func serverNames(l *listenerv3.Listener) []string {
	var names []string
	for _, c := range l.FilterChains {
		names = append(names, c.GetFilterChainMatch().GetServerNames()...)
	}
	const many = 10
	if len(names) > many {
		names = append(names[:many], "…")
	}
	return names
}

func chainText(m *listenerv3.FilterChainMatch) string {
	var criteria []string
	if m.GetDestinationPort() != nil {
		criteria = append(criteria, fmt.Sprintf("port %d", m.DestinationPort.Value))
	}
	for _, block := range m.GetPrefixRanges() {
		criteria = append(criteria, fmt.Sprintf("%s/%d", block.AddressPrefix, block.PrefixLen.GetValue()))
	}
	if len(m.GetServerNames()) > 0 {
		criteria = append(criteria, "server name "+list(m.ServerNames))
	}
	if m.GetTransportProtocol() != "" {
		criteria = append(criteria, "transport "+m.TransportProtocol)
	}
	if len(m.GetApplicationProtocols()) > 0 {
		criteria = append(criteria, "protocol "+list(m.ApplicationProtocols))
	}
	if len(criteria) == 0 {
		return "everything"
	}
	return strings.Join(criteria, " and ")
}

// filters evaluates the network filters of a filter chain, up to the terminal one.
func (e *explanation) filters(chain *listenerv3.FilterChain, d *listener) {
	for _, f := range chain.Filters {
		if manager, ok := unpack(f.GetTypedConfig(), &hcmv3.HttpConnectionManager{}); ok {
			if e.request.TLS && chain.TransportSocket == nil {
				e.end(OutcomeConnectionClosed, 0, "the listener takes plain requests, and TLS comes",
					"ask without --tls, or give the port the protocol TLS or HTTPS")
				return
			}
			e.patched("network filter", f.Name, d, managerFacts(manager, len(telemetries(d)) == 0)...)
			e.telemetry(manager, d)
			e.manager(manager, d)
			return
		}
		if proxy, ok := unpack(f.GetTypedConfig(), &tcpproxyv3.TcpProxy{}); ok {
			e.patched("network filter", f.Name, d)
			e.pass(proxy, d)
			return
		}
		e.patched("network filter", f.Name, d)
		if f.Name == rbac.SNIResolverFilter {
			// function cluster explains this filter, which resolves the names of dynamic DNS
			// clusters
			continue
		}
		if ended, known := e.guardConnection(f, d); ended {
			return
		} else if known {
			continue
		}
		e.unknown("what network filter %s does with the connection", f.Name)
	}
	e.end(OutcomeConnectionClosed, 0, "the filter chain passes connections on to nobody", "")
}

// pass explains how a TCP proxy forwards the connection.
func (e *explanation) pass(proxy *tcpproxyv3.TcpProxy, d *listener) {
	var targets []WeightedCluster
	weights := proxy.GetWeightedClusters().GetClusters()
	var total uint32
	for _, c := range weights {
		total += c.Weight
	}
	for _, c := range weights {
		targets = append(targets, WeightedCluster{Cluster: c.Name, Percent: percentOf(c.Weight,
			total)})
	}
	if name := proxy.GetCluster(); name != "" {
		targets = []WeightedCluster{{Cluster: name, Percent: 100}}
	}
	facts := []string{"passes the bytes of the connection on, whatever is requested"}
	if to := proxy.GetTunnelingConfig().GetHostname(); to != "" {
		facts = append(facts, "through a tunnel to "+to)
	}
	if idle := proxy.GetIdleTimeout(); idle != nil {
		facts = append(facts, fmt.Sprintf("ends connections that are idle for %v",
			idle.AsDuration()))
	}
	e.step("action", "connection", d.resource.Origins, append(facts, targetFacts(targets)...)...)
	e.forward(targets, OutcomeConnectionClosed, 0)
}
