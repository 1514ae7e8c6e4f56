package validate

import (
	"fmt"
	"net/netip"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) gateway(g *networking.Gateway) {
	if len(g.Servers) == 0 {
		c.fail("servers", "the Gateway has no server", "write at least one")
	}
	c.labels("selector", g.Selector)
	names := map[string]bool{}
	for i, s := range g.Servers {
		field := fmt.Sprintf("servers[%d]", i)
		c.server(field, s)
		if name := s.GetPort().GetName(); name != "" {
			if names[name] {
				c.fail(field+".port.name", fmt.Sprintf("a port is called %s already", name), "rename one")
			}
			names[name] = true
		}
	}
}

func (c *checker) server(field string, s *networking.Server) {
	c.port(field+".port.number", s.GetPort().GetNumber())
	if s.GetPort().GetName() == "" {
		c.fail(field+".port.name", "the port has no name", "name it, for example http")
	}
	if s.Bind != "" {
		if _, err := netip.ParseAddr(s.Bind); err != nil {
			c.fail(field+".bind", fmt.Sprintf("%q is no IP address", s.Bind), "")
		}
	}
	if s.DefaultEndpoint != "" {
		c.without(field + ".defaultEndpoint")
	}
	if len(s.Hosts) == 0 {
		c.fail(field+".hosts", "the server has no host", `write "*" for all`)
	}
	for i, host := range s.Hosts {
		c.serverHost(fmt.Sprintf("%s.hosts[%d]", field, i), host)
	}
	protocol := s.GetPort().GetProtocol()
	parsed, ok := model.ParseProtocol(protocol, s.GetPort().GetName())
	switch {
	case protocol == "":
		c.fail(field+".port.protocol", "the port has no protocol", "write HTTP or HTTPS")
	case !ok:
		c.fail(field+".port.protocol", fmt.Sprintf("%q is no protocol", protocol), "write HTTP or HTTPS")
	case strings.EqualFold(protocol, "HTTPS"):
		c.serverTLS(field+".tls", s.Tls)
	case parsed.IsHTTP():
		if s.Tls != nil && (s.Tls.Mode != networking.ServerTLSSettings_PASSTHROUGH || s.Tls.ServerCertificate != "" || s.Tls.CredentialName != "") {
			c.fail(field+".tls", fmt.Sprintf("port %s speaks %s: of TLS it can only have httpsRedirect", s.Port.Name, protocol), "write protocol: HTTPS")
		}
	default:
		c.absent(field + ".port.protocol")
	}
}

func (c *checker) serverHost(field, host string) {
	namespace, name, ok := strings.Cut(host, "/")
	if !ok {
		namespace, name = "*", host
	}
	if namespace != "*" && namespace != "." && !dnsLabel.MatchString(namespace) {
		c.fail(field, fmt.Sprintf("%q is no namespace", namespace), "write *, . or a namespace before the /")
	}
	if name != "*" {
		c.hostOrAddress(field, name)
	}
}

func (c *checker) serverTLS(field string, t *networking.ServerTLSSettings) {
	if t == nil {
		c.fail(field, "an HTTPS server needs tls", "write mode, serverCertificate and privateKey in it")
		return
	}
	if t.HttpsRedirect {
		c.fail(field+".httpsRedirect", "an HTTPS server cannot redirect to itself", "write it into the HTTP server")
	}
	for name, given := range map[string]bool{"credentialName": t.CredentialName != "", "credentialNames": len(t.CredentialNames) > 0,
		"caCertCredentialName": t.CaCertCredentialName != ""} {
		if given {
			c.fail(field+"."+name, "certificates by the name of a secret are not carried out by this version of Outrider", "write the files' paths into serverCertificate and privateKey")
		}
	}
	mutual := t.Mode == networking.ServerTLSSettings_MUTUAL || t.Mode == networking.ServerTLSSettings_OPTIONAL_MUTUAL
	switch t.Mode {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
	case networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		c.fail(field+".mode", "AUTO_PASSTHROUGH belongs to meshes of several clusters and is not carried out", "write SIMPLE or MUTUAL")
		return
	default:
		c.absent(field + ".mode")
		return
	}
	if len(t.TlsCertificates) == 0 && t.CredentialName == "" && len(t.CredentialNames) == 0 {
		c.pair(field, t.ServerCertificate, t.PrivateKey)
	}
	if len(t.TlsCertificates) > 0 && t.ServerCertificate != "" {
		c.fail(field+".tlsCertificates", "excludes serverCertificate, and both are given", "keep one")
	}
	if len(t.TlsCertificates) > 2 {
		c.warn(field+".tlsCertificates", "of one kind of key only one certificate is used", "give one with an RSA key and one with an ECDSA key")
	}
	authority := t.CaCertificates
	for i, pair := range t.TlsCertificates {
		c.pair(fmt.Sprintf("%s.tlsCertificates[%d]", field, i), pair.GetServerCertificate(), pair.GetPrivateKey())
		authority += pair.GetCaCertificates()
	}
	if mutual && authority == "" {
		c.fail(field+".caCertificates", fmt.Sprintf("%s needs the certificates that clients' are checked with", t.Mode), "write the path of a file")
	}
	if !mutual && len(t.SubjectAltNames)+len(t.VerifyCertificateHash)+len(t.VerifyCertificateSpki) > 0 {
		c.warn(field, "clients' certificates are not asked for with mode SIMPLE, so what is said of them has no effect", "write mode: MUTUAL")
	}
	if t.InsecureSkipVerify.GetValue() {
		c.absent(field + ".insecureSkipVerify")
	}
	lowest, highest := t.MinProtocolVersion, t.MaxProtocolVersion
	if lowest == networking.ServerTLSSettings_TLS_AUTO {
		lowest = networking.ServerTLSSettings_TLSV1_2
	}
	if highest != networking.ServerTLSSettings_TLS_AUTO && lowest > highest {
		c.warn(field+".maxProtocolVersion", fmt.Sprintf("%s is below the minimum %s: no client can connect", highest, lowest), "raise it or lower minProtocolVersion")
	}
}

func (c *checker) pair(field, certificate, key string) {
	for name, path := range map[string]string{"serverCertificate": certificate, "privateKey": key} {
		if path == "" {
			c.fail(field+"."+name, "is missing", "write the path of a file")
		}
	}
}
