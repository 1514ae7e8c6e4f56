package validate

import (
	"fmt"
	"net/netip"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) serviceEntry(s *networking.ServiceEntry) {
	if !c.serviceBounds(s) {
		return
	}
	c.serviceHosts(s)
	c.addresses(s)
	c.servicePorts(s)
	c.workloadSelector(s)
	c.resolution(s)
	c.seenBy(s.ExportTo, true)
	for i, name := range s.SubjectAltNames {
		if name == "" {
			c.fail(fmt.Sprintf("subjectAltNames[%d]", i), "is empty",
				"write a name that certificates have, or remove it")
		}
	}
}

func (c *checker) serviceHosts(s *networking.ServiceEntry) {
	if len(s.Hosts) == 0 {
		c.fail("hosts", "the ServiceEntry has no host", "write at least one")
	}
	for i, host := range s.Hosts {
		field := fmt.Sprintf("hosts[%d]", i)
		if host == "*" {
			c.fail(field, "* alone is not a host", "name the hosts, or a domain as *.example.com")
			continue
		}
		c.host(field, host, true)
		if s.Resolution == networking.ServiceEntry_DYNAMIC_DNS && !model.IsWildcard(host) {
			c.fail(field, "DYNAMIC_DNS resolves hosts of a wildcard, and this is one host",
				"write a host such as *.example.com, or resolution: DNS")
		}
		if strings.HasPrefix(host, "*") && !strings.HasPrefix(host, "*.") {
			c.warn(field, fmt.Sprintf("%q: only a whole first label is a wildcard", host),
				"write a host such as *.example.com")
		}
		if byDNS(s) && len(s.Endpoints) == 0 && s.WorkloadSelector == nil &&
			model.IsWildcard(host) {
			c.fail(field, "a host with a wildcard cannot be resolved by DNS",
				"give endpoints, or a host without a wildcard")
		} else if byDNS(s) && len(s.Endpoints) == 0 && s.WorkloadSelector == nil &&
			strings.Trim(host, "0123456789") == "" {
			c.host(field, host, false)
		}
	}
}

func byDNS(s *networking.ServiceEntry) bool {
	return s.Resolution == networking.ServiceEntry_DNS ||
		s.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN
}

func (c *checker) addresses(s *networking.ServiceEntry) {
	for i, address := range s.Addresses {
		field := fmt.Sprintf("addresses[%d]", i)
		_, err := netip.ParseAddr(address)
		_, cidr := netip.ParsePrefix(address)
		switch {
		case err != nil && cidr != nil:
			c.fail(field, fmt.Sprintf("%q is neither an IP address nor a CIDR block", address),
				"write 10.1.2.3 or 10.1.2.0/24")
		case err != nil && s.Resolution != networking.ServiceEntry_NONE &&
			s.Resolution != networking.ServiceEntry_STATIC:
			c.fail(field, "a block of addresses goes with resolution NONE and STATIC only",
				"write single addresses")
		}
	}
}

func (c *checker) servicePorts(s *networking.ServiceEntry) {
	if len(s.Ports) == 0 {
		c.warn("ports", "there is none: nobody can reach the hosts", "write at least one")
	}
	numbers, names := map[uint32]bool{}, map[string]bool{}
	for i, port := range s.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		c.port(field+".number", port.GetNumber())
		if numbers[port.GetNumber()] {
			c.fail(field+".number", fmt.Sprintf("port %d is given twice", port.Number),
				"remove one")
		}
		numbers[port.GetNumber()] = true
		switch {
		case port.GetName() == "":
			c.fail(field+".name", "the port has no name", "name it, for example http")
		case !isDNSLabel(port.Name):
			c.fail(field+".name", fmt.Sprintf("%q is no port's name", port.Name),
				"write letters, digits and -")
		case names[port.Name]:
			c.fail(field+".name", fmt.Sprintf("a port is called %s already", port.Name),
				"rename one")
		}
		names[port.GetName()] = true
		protocol, ok := model.ParseProtocol(port.GetProtocol(), port.GetName())
		if !ok {
			c.fail(field+".protocol", fmt.Sprintf("%q is no protocol", port.Protocol),
				"write one of HTTP, HTTP2, GRPC, GRPC-Web, HTTPS, TLS, TCP, MONGO, REDIS, MYSQL")
		}
		if ok && len(s.Hosts) > 1 && s.Resolution != networking.ServiceEntry_NONE &&
			(port.GetProtocol() == "" || !protocol.IsHTTP() && protocol != model.TLS) {
			c.fail(field+".protocol",
				"connections that are neither HTTP nor TLS do not tell for which of several hosts they are",
				"write a ServiceEntry for each host")
		}
		if port.GetTargetPort() != 0 {
			c.port(field+".targetPort", port.TargetPort)
		}
	}
}

func (c *checker) workloadSelector(s *networking.ServiceEntry) {
	if s.WorkloadSelector == nil {
		return
	}
	if len(s.Endpoints) > 0 {
		c.fail("workloadSelector", "excludes endpoints, and both are given", "keep one")
	}
	if s.Resolution == networking.ServiceEntry_NONE {
		c.warn("workloadSelector", "has no effect with resolution NONE", "write resolution: STATIC")
	}
	if len(s.WorkloadSelector.Labels) == 0 {
		c.warn("workloadSelector",
			"asks for no label, and chooses every WorkloadEntry of the namespace", "write labels")
	}
	c.selector("workloadSelector.labels", s.WorkloadSelector.Labels)
}

// selector checks the labels of a selector. They must not be patterns.
func (c *checker) selector(field string, labels map[string]string) {
	for key, value := range labels {
		if strings.Contains(key, "*") || strings.Contains(value, "*") {
			c.fail(fmt.Sprintf("%s[%q]", field, key),
				"* stands for itself in a selector, and no label has it", "write the label's value")
			continue
		}
		c.labels(field, map[string]string{key: value})
	}
}

// resolution checks the endpoints of a ServiceEntry, whose meaning depends on its resolution.
func (c *checker) resolution(s *networking.ServiceEntry) {
	switch s.Resolution {
	case networking.ServiceEntry_NONE:
		if len(s.Endpoints) > 0 {
			c.fail("endpoints", "a ServiceEntry with resolution NONE has no endpoints",
				"write resolution: STATIC or DNS")
			return
		}
		c.warn("resolution",
			"NONE (the default) sends requests where they were addressed to, which needs interception; "+
				"without it nothing is sent",
			"write resolution: STATIC with endpoints, or DNS")
	case networking.ServiceEntry_STATIC:
		if len(s.Endpoints) == 0 && s.WorkloadSelector == nil {
			c.warn("endpoints", "there are none: requests get 503", "add endpoints")
		}
	case networking.ServiceEntry_DNS:
	case networking.ServiceEntry_DNS_ROUND_ROBIN:
		if len(s.Endpoints) > 1 {
			c.fail("endpoints", "with DNS_ROUND_ROBIN there is at most one",
				"write resolution: DNS, or one endpoint")
		}
	case networking.ServiceEntry_DYNAMIC_DNS:
		c.dynamicDNS(s)
	default:
		c.fail("resolution", fmt.Sprintf("%d is no resolution", s.Resolution),
			"write NONE, STATIC, DNS, DNS_ROUND_ROBIN or DYNAMIC_DNS")
	}
	for i, e := range s.Endpoints {
		field := fmt.Sprintf("endpoints[%d]", i)
		if e == nil {
			c.fail(field, "the endpoint is empty", "write its address or remove it")
			continue
		}
		c.endpoint(field+".", e, s)
	}
}

// dynamicDNS checks a ServiceEntry whose hosts are resolved when requests arrive.
func (c *checker) dynamicDNS(s *networking.ServiceEntry) {
	for field, set := range map[string]bool{"addresses": len(s.Addresses) > 0,
		"endpoints": len(s.Endpoints) > 0} {
		if set {
			c.fail(field, "DYNAMIC_DNS resolves the host of each request, and takes none",
				"remove them, or write resolution: STATIC")
		}
	}
	if s.WorkloadSelector != nil {
		c.warn("workloadSelector", "has no effect with resolution DYNAMIC_DNS", "remove it")
	}
	for i, port := range s.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		switch strings.ToUpper(port.GetProtocol()) {
		case "HTTP", "HTTP2", "GRPC", "TLS":
		default:
			c.fail(field+".protocol",
				"with DYNAMIC_DNS the host is that of a request, or the server name of TLS",
				"write HTTP, HTTP2, GRPC or TLS")
		}
		if port.GetTargetPort() != 0 {
			c.warn(field+".targetPort",
				"has no effect with DYNAMIC_DNS: the port is that of the request", "remove it")
		}
	}
}
