package validate

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) gateway(name string, g *networking.Gateway) {
	if !isDNSLabel(name) {
		c.fail("",
			fmt.Sprintf(
				"%q is no name of a Gateway: VirtualServices could not tell it from its namespace",
				name), "write letters, digits and - only")
	}
	if len(g.Servers) == 0 {
		c.fail("servers", "the Gateway has no server", "write at least one")
	}
	c.labels("selector", g.Selector)
	names, servers := map[string]bool{}, map[string]bool{}
	for i, s := range g.Servers {
		field := fmt.Sprintf("servers[%d]", i)
		c.server(field, s)
		if name := s.GetPort().GetName(); name != "" {
			if names[name] {
				c.fail(field+".port.name", fmt.Sprintf("a port is called %s already", name),
					"rename one")
			}
			names[name] = true
		}
		if s.Name != "" && servers[s.Name] {
			c.warn(fmt.Sprintf("servers[%d].name", i),
				fmt.Sprintf("a server is called %s already: their metrics cannot be told apart",
					s.Name), "rename one")
		}
		servers[s.Name] = true
	}
}

func (c *checker) server(field string, s *networking.Server) {
	if s.Port == nil {
		c.fail(field+".port", "is missing", "write number, name and protocol")
		return
	}
	c.port(field+".port.number", s.Port.Number)
	if s.Port.Name == "" {
		c.fail(field+".port.name", "the port has no name", "name it, for example http")
	}
	if s.Port.TargetPort > 0 { //nolint:staticcheck // deprecated, still valid YAML
		c.fail(field+".port.targetPort",
			"has no effect in a Gateway, which listens on the port itself", "remove it")
	}
	c.bind(field+".bind", s.Bind)
	if s.DefaultEndpoint != "" {
		c.without(field + ".defaultEndpoint")
	}
	if len(s.Hosts) == 0 {
		c.fail(field+".hosts", "the server has no host", `write "*" for all`)
	}
	for i, host := range s.Hosts {
		c.serverHost(fmt.Sprintf("%s.hosts[%d]", field, i), host)
	}
	c.serverProtocol(field, s)
	if s.Name != "" && (!strings.EqualFold(s.Port.Protocol, "HTTPS") ||
		forwardsTLS(s.Tls)) {
		c.warn(field+".name",
			"has no effect: only metrics of HTTPS servers that end TLS have the server's name",
			"remove it")
	}
}

const gatewayProtocols = "write HTTP, HTTP2, GRPC, HTTPS, TLS or TCP"

func (c *checker) serverProtocol(field string, s *networking.Server) {
	protocol := s.Port.Protocol
	parsed, ok := model.ParseProtocol(protocol, "")
	switch {
	case protocol == "":
		c.fail(field+".port.protocol", "the port has no protocol", gatewayProtocols)
	case !ok:
		c.fail(field+".port.protocol", fmt.Sprintf("%q is no protocol", protocol), gatewayProtocols)
	case parsed == model.TLS && s.Tls == nil:
		c.fail(field+".tls", fmt.Sprintf("a server of protocol %s needs tls", protocol),
			"write mode, serverCertificate and privateKey in it, or mode: PASSTHROUGH")
	case parsed == model.TLS:
		c.serverTLS(field+".tls", s.Tls)
	case parsed.IsHTTP():
		if t := s.Tls; t != nil && (t.Mode != networking.ServerTLSSettings_PASSTHROUGH ||
			usesCertificates(t)) {
			c.fail(field+".tls",
				fmt.Sprintf("port %s speaks %s: of TLS it can only have httpsRedirect", s.Port.Name,
					protocol), "write protocol: HTTPS")
		} else if t != nil {
			c.idleTLS(field+".tls", t, fmt.Sprintf("port %s speaks %s", s.Port.Name, protocol))
		}
	case s.Tls != nil:
		c.fail(field+".tls", fmt.Sprintf("port %s speaks %s, which has no TLS", s.Port.Name,
			protocol), "write protocol: TLS")
	}
}

func (c *checker) serverHost(field, host string) {
	namespace, name, _ := model.SplitHost(host)
	if namespace != "*" && namespace != "." && !isDNSLabel(namespace) {
		c.fail(field, fmt.Sprintf("%q is no namespace", namespace),
			"write *, . or a namespace before the /")
	}
	if c.fullHost(field, name) && name != "*" {
		c.hostOrAddress(field, name)
	}
}
