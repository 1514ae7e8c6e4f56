package validate

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) sidecar(s *networking.Sidecar, namespace string) {
	if len(s.Egress)+len(s.Ingress) == 0 && s.OutboundTrafficPolicy == nil &&
		s.InboundConnectionPool == nil {
		c.fail("", "the Sidecar says nothing",
			"write egress, ingress, outboundTrafficPolicy or inboundConnectionPool")
	}
	if s.WorkloadSelector != nil {
		if len(s.WorkloadSelector.Labels) == 0 {
			c.warn("workloadSelector", "has no labels, so the Sidecar is for all of its namespace",
				"write labels, or remove it")
		}
		c.labels("workloadSelector.labels", s.WorkloadSelector.Labels)
	}
	ports := map[uint32]bool{}
	for i, listener := range s.Ingress {
		c.ingress(fmt.Sprintf("ingress[%d]", i), listener, ports)
	}
	if s.InboundConnectionPool != nil {
		c.connectionPool("inboundConnectionPool", s.InboundConnectionPool)
	}
	ports = map[uint32]bool{}
	for i, listener := range s.Egress {
		c.egress(fmt.Sprintf("egress[%d]", i), listener, ports, i == len(s.Egress)-1, namespace)
	}
	c.outboundTrafficPolicy(s.OutboundTrafficPolicy)
}

// listenerPort checks the port of a listener. No other listener in ports may have the same one.
func (c *checker) listenerPort(field string, p *networking.SidecarPort, ports map[uint32]bool) {
	c.port(field+".number", p.Number)
	if ports[p.Number] {
		c.fail(field+".number", fmt.Sprintf("port %d is given twice", p.Number),
			"give the listener another port")
	}
	ports[p.Number] = true
	if p.Name != "" && !isDNSLabel(p.Name) {
		c.fail(field+".name", fmt.Sprintf("%q is no port's name", p.Name),
			"write letters, digits and -")
	}
	if p.TargetPort > 0 { //nolint:staticcheck // deprecated, but it must not be silent
		c.fail(field+".targetPort", "has no effect in a Sidecar", "remove it")
	}
}

func (c *checker) listenerProtocol(field string, p *networking.SidecarPort) {
	if _, ok := model.ParseProtocol(p.Protocol, ""); !ok {
		c.fail(field+".protocol", fmt.Sprintf("%q is no protocol", p.Protocol),
			"write one of HTTP, HTTP2, GRPC, GRPC-Web, HTTPS, TLS, TCP, MONGO, REDIS, MYSQL")
	}
}

func (c *checker) bind(field, bind string) {
	if _, err := netip.ParseAddr(bind); bind != "" && err != nil {
		c.fail(field, fmt.Sprintf("%q is no IP address", bind),
			"write an IP address of this machine, or remove it")
	}
}

func (c *checker) ingress(field string, l *networking.IstioIngressListener, ports map[uint32]bool) {
	if l.GetPort() == nil {
		c.fail(field+".port", "the listener has no port", "write number and protocol")
		return
	}
	c.listenerPort(field+".port", l.Port, ports)
	c.listenerProtocol(field+".port", l.Port)
	c.bind(field+".bind", l.Bind)
	c.defaultEndpoint(field+".defaultEndpoint", l.DefaultEndpoint)
	protocol, _ := model.ParseProtocol(l.Port.Protocol, "")
	if l.Tls != nil {
		if protocol != model.TLS {
			c.fail(field+".tls", fmt.Sprintf("port %d speaks %s: only HTTPS and TLS have tls",
				l.Port.Number, l.Port.Protocol), "write protocol: HTTPS")
		}
		if len(l.Tls.SubjectAltNames) > 0 {
			c.fail(field+".tls.subjectAltNames", "is not taken in a Sidecar", "remove it")
		}
		if l.Tls.HttpsRedirect {
			c.fail(field+".tls.httpsRedirect", "is not taken in a Sidecar", "remove it")
		}
		if len(l.Tls.TlsCertificates) > 0 {
			c.fail(field+".tls.tlsCertificates", "is not taken in a Sidecar",
				"write serverCertificate and privateKey")
		}
		for name, set := range map[string]bool{"credentialName": l.Tls.CredentialName != "",
			"credentialNames":      len(l.Tls.CredentialNames) > 0,
			"caCertCredentialName": l.Tls.CaCertCredentialName != ""} {
			if set {
				c.fail(field+".tls."+name, "is not taken in a Sidecar",
					"write the paths of files, also of credentials, into serverCertificate, privateKey "+
						"and caCertificates")
			}
		}
		switch l.Tls.Mode {
		case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
			c.fail(field+".tls.mode", l.Tls.Mode.String()+" ends no TLS",
				"remove tls: what comes in is passed on as it is")
		case networking.ServerTLSSettings_ISTIO_MUTUAL:
			c.fail(field+".tls.mode", "ISTIO_MUTUAL is not taken in a Sidecar",
				"remove tls, and set STRICT in a PeerAuthentication")
		default:
			c.serverTLS(field+".tls", l.Tls)
		}
	}
	if l.ConnectionPool != nil {
		c.connectionPool(field+".connectionPool", l.ConnectionPool)
		if l.ConnectionPool.Http != nil && !protocol.IsHTTP() && l.Tls == nil {
			c.warn(field+".connectionPool.http",
				fmt.Sprintf("port %d speaks %s, so only the settings of tcp count", l.Port.Number,
					l.Port.Protocol), "remove http")
		}
	}
}

const unixScheme = "unix://"

func (c *checker) defaultEndpoint(field, endpoint string) {
	if endpoint == "" {
		return
	}
	const fix = "write 127.0.0.1:PORT, 0.0.0.0:PORT (the machine's address), [::1]:PORT, [::]:PORT " +
		"or unix:///PATH"
	if socket, ok := strings.CutPrefix(endpoint, unixScheme); ok {
		c.socket(field, socket)
		return
	}
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		c.fail(field, fmt.Sprintf("%q is no address with a port", endpoint), fix)
		return
	}
	if !slices.Contains([]string{"", "127.0.0.1", "0.0.0.0", "::1", "::"}, host) {
		c.fail(field, fmt.Sprintf("%q is not this machine", host), fix)
	}
	number, err := strconv.ParseUint(port, 10, 32)
	if err != nil {
		c.fail(field, fmt.Sprintf("%q is not a valid port", port), fix)
		return
	}
	c.port(field, uint32(number))
}

// socket checks the path of a Unix socket. A socket whose path begins with @ is abstract.
func (c *checker) socket(field, socket string) {
	if !strings.HasPrefix(socket, "@") && (!path.IsAbs(socket) || strings.HasSuffix(socket, "/")) {
		c.fail(field, fmt.Sprintf("%q is not an absolute path", socket),
			"write unix:///run/app.sock")
	}
	if len(socket) > 107 {
		c.fail(field, "the path of the socket is longer than 107 bytes", "")
	}
}

const noUnixListener = "outbound listeners on Unix sockets are not carried out by this version " +
	"of Outrider"

func (c *checker) egress(field string, l *networking.IstioEgressListener, ports map[uint32]bool,
	last bool, namespace string) {
	switch {
	case l.GetPort() == nil:
		if !last {
			c.fail(field+".port",
				"the listener without a port takes what all others leave, and must be the last",
				"move it to the end, or give it a port")
		}
		if strings.HasPrefix(l.GetBind(), unixScheme) {
			c.fail(field+".bind", noUnixListener,
				"give the listener a port, and an IP address as bind")
		} else {
			c.bind(field+".bind", l.GetBind())
		}
	case l.Port.Number == 0:
		c.fail(field+".port.number", noUnixListener, "give the listener a port")
	default:
		c.listenerPort(field+".port", l.Port, ports)
		if !model.IsHTTPProxy(l) {
			c.listenerProtocol(field+".port", l.Port)
		}
		c.bind(field+".bind", l.Bind)
	}
	if len(l.GetHosts()) == 0 {
		c.fail(field+".hosts", "the listener has no host",
			`write "./*" for those of the Sidecar's namespace, "*/*" for all`)
	}
	c.egressHosts(field+".hosts", l.GetHosts(), namespace)
}

// egressHosts checks the hosts of an egress listener: NAMESPACE/HOST imports hosts, ~NAMESPACE/HOST
// excludes them.
func (c *checker) egressHosts(field string, hosts []string, namespace string) {
	seen := map[string]bool{}
	imports := 0
	for i, host := range hosts {
		path := fmt.Sprintf("%s[%d]", field, i)
		scope, name, ok := strings.Cut(host, "/")
		if !ok {
			c.fail(path, fmt.Sprintf("%q has no namespace", host), fmt.Sprintf("write ./%s or */%s",
				host, host))
			continue
		}
		scope, excludes := strings.CutPrefix(scope, "~")
		if !(excludes && scope == "") && scope != "*" && scope != "." &&
			!isDNSLabel(scope) {
			c.fail(path, fmt.Sprintf("%q is no namespace", scope),
				"write *, ., ~ or a namespace before the /, and a ~ before that to exclude the host")
		}
		switch {
		case name == "":
			c.fail(path, "there is no host after the /",
				"write a host, or * for all of the namespace")
		case c.fullHost(path, name) && name != "*":
			c.host(path, name, true)
		}
		if excludes {
			continue
		}
		imports++
		if scope == "." {
			scope = namespace
		}
		if seen[scope+"/"+name] || seen[scope+"/*"] || seen["*/*"] {
			c.warn(path, fmt.Sprintf("%s is named already", host), "remove it")
		}
		seen[scope+"/"+name] = true
	}
	if imports == 0 && len(hosts) > 1 {
		c.warn(field, "hosts are excluded and none is imported",
			`write "*/*" beside them to import all others`)
	}
}

func (c *checker) outboundTrafficPolicy(p *networking.OutboundTrafficPolicy) {
	if p == nil {
		return
	}
	switch p.Mode {
	case networking.OutboundTrafficPolicy_REGISTRY_ONLY, networking.OutboundTrafficPolicy_ALLOW_ANY:
	default:
		c.absent("outboundTrafficPolicy.mode")
	}
	if p.EgressProxy == nil {
		return
	}
	const field = "outboundTrafficPolicy.egressProxy"
	if p.Mode != networking.OutboundTrafficPolicy_ALLOW_ANY {
		c.fail(field, "is only taken with mode ALLOW_ANY", "write mode: ALLOW_ANY")
	}
	if p.EgressProxy.Port == nil {
		c.fail(field+".port", "the proxy has no port", "write number")
	}
	c.destination(field, p.EgressProxy)
	if host := p.EgressProxy.Host; model.IsWildcard(host) {
		c.fail(field+".host", fmt.Sprintf("%q is a wildcard", host), "name one host")
	}
}
