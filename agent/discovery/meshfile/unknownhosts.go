package meshfile

import (
	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/validate"
)

// dynamicDNS reports whether requests to unknown hosts are sent to the addresses that DNS has for
// the host.
func dynamicDNS(m *meshapi.MeshConfig) bool {
	return m.OutboundTrafficPolicy.GetMode() ==
		meshapi.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS
}

// unknownHosts checks the client TLS settings for requests to unknown hosts.
func (c *checker) unknownHosts(m *meshapi.MeshConfig) {
	const field = "outboundTrafficPolicy.tls"
	in := m.OutboundTrafficPolicy.GetTls()
	switch {
	case in == nil:
		return
	case in.Mode == networking.ClientTLSSettings_ISTIO_MUTUAL:
		c.fail(field+".mode", "unknown hosts have no certificate of the mesh",
			"write SIMPLE or MUTUAL")
	case !dynamicDNS(m):
		c.warn(field, "has no effect: requests to unknown hosts are passed on as they are, or blocked",
			"write mode: ALLOW_ANY_DYNAMIC_DNS, or remove it")
	}
	c.findings = append(c.findings, validate.ClientTLS(field, in)...)
}
