package validate

import (
	"fmt"

	security "istio.io/api/security/v1beta1"
)

func (c *checker) peerAuthentication(p *security.PeerAuthentication) {
	labels := p.GetSelector().GetMatchLabels()
	if p.Selector != nil && len(labels) == 0 {
		c.warn("selector", "has no labels, so the PeerAuthentication is for all of its namespace",
			"write matchLabels, or remove it")
	}
	c.selector("selector.matchLabels", labels)
	if len(p.PortLevelMtls) > 0 && len(labels) == 0 {
		c.fail("portLevelMtls", "ports have a mode of their own only for selected workloads",
			"write selector.matchLabels, or remove portLevelMtls")
	}
	for port := range p.PortLevelMtls {
		c.port(fmt.Sprintf("portLevelMtls[%d]", port), port)
	}
}
