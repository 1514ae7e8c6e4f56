package validate

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
)

// Limits of the length of lists, from Istio's CRDs.
const (
	mostHosts         = 256 // limit of hosts, and also of addresses and ports of a ServiceEntry
	mostEndpoints     = 4096
	mostEndpointPorts = 128
	mostLabels        = 256
	mostPortPolicies  = 4096
	longestAddress    = 256
	longestLocality   = 2048
	longestAccount    = 253
)

// mostVirtualHosts bounds the hosts of a VirtualService. Each host is compared with all others, so
// time and memory grow with the square of their number. Istio has no such limit.
const mostVirtualHosts = 256

// most reports whether a count is at most most, and adds an error if it is not.
func (c *checker) most(field string, count, most int) bool {
	if count > most {
		c.fail(field, fmt.Sprintf("%d of them are more than the %d that there may be", count, most),
			"split the object")
	}
	return count <= most
}

func (c *checker) longest(field, text string, longest int) {
	if len(text) > longest {
		c.fail(field, fmt.Sprintf("is longer than %d characters", longest), "shorten it")
	}
}

// serviceBounds reports whether a ServiceEntry is within its limits, so that it can be checked
// further.
func (c *checker) serviceBounds(s *networking.ServiceEntry) bool {
	fits := c.most("hosts", len(s.Hosts), mostHosts)
	fits = c.most("addresses", len(s.Addresses), mostHosts) && fits
	fits = c.most("ports", len(s.Ports), mostHosts) && fits
	fits = c.most("endpoints", len(s.Endpoints), mostEndpoints) && fits
	return c.most("workloadSelector.labels", len(s.WorkloadSelector.GetLabels()), mostLabels) &&
		fits
}

func (c *checker) workloadBounds(prefix string, e *networking.WorkloadEntry) {
	c.longest(prefix+"address", e.GetAddress(), longestAddress)
	c.longest(prefix+"network", e.GetNetwork(), longestLocality)
	c.longest(prefix+"locality", e.GetLocality(), longestLocality)
	c.longest(prefix+"serviceAccount", e.GetServiceAccount(), longestAccount)
	c.most(prefix+"ports", len(e.GetPorts()), mostEndpointPorts)
	c.most(prefix+"labels", len(e.GetLabels()), mostLabels)
}
