package validate

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) serviceEntry(s *networking.ServiceEntry) {
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
		if s.Resolution == networking.ServiceEntry_DNS || s.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN {
			if len(s.Endpoints) == 0 && model.IsWildcard(host) {
				c.fail(field, "a host with a wildcard cannot be resolved by DNS", "give endpoints, or a host without a wildcard")
			}
		}
	}
	for i, address := range s.Addresses {
		_, err := netip.ParseAddr(address)
		if _, cidr := netip.ParsePrefix(address); err != nil && cidr != nil {
			c.fail(fmt.Sprintf("addresses[%d]", i), fmt.Sprintf("%q is neither an IP address nor a CIDR block", address), "")
		}
	}
	c.servicePorts(s)
	c.resolution(s)
	c.exportTo(s.ExportTo)
	if s.WorkloadSelector != nil {
		if len(s.Endpoints) > 0 {
			c.fail("workloadSelector", "excludes endpoints, and both are given", "keep one")
		}
		c.absent("workloadSelector")
	}
	if len(s.SubjectAltNames) > 0 {
		c.without("subjectAltNames")
	}
}

func (c *checker) servicePorts(s *networking.ServiceEntry) {
	if len(s.Ports) == 0 {
		c.fail("ports", "the ServiceEntry has no port", "write at least one")
	}
	numbers, names := map[uint32]bool{}, map[string]bool{}
	for i, port := range s.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		c.port(field+".number", port.GetNumber())
		if numbers[port.GetNumber()] {
			c.fail(field+".number", fmt.Sprintf("port %d is given twice", port.Number), "remove one")
		}
		numbers[port.GetNumber()] = true
		switch {
		case port.GetName() == "":
			c.fail(field+".name", "the port has no name", "name it, for example http")
		case !dnsLabel.MatchString(port.Name):
			c.fail(field+".name", fmt.Sprintf("%q is no port's name", port.Name), "write letters, digits and -")
		case names[port.Name]:
			c.fail(field+".name", fmt.Sprintf("a port is called %s already", port.Name), "rename one")
		}
		names[port.GetName()] = true
		if _, ok := model.ParseProtocol(port.GetProtocol(), port.GetName()); !ok {
			c.fail(field+".protocol", fmt.Sprintf("%q is no protocol", port.Protocol), "write one of HTTP, HTTP2, GRPC, GRPC-Web, HTTPS, TLS, TCP, MONGO, REDIS, MYSQL")
		}
		if port.GetTargetPort() != 0 {
			c.port(field+".targetPort", port.TargetPort)
		}
	}
}

// resolution checks the endpoints, which mean something else with each kind of resolution.
func (c *checker) resolution(s *networking.ServiceEntry) {
	switch s.Resolution {
	case networking.ServiceEntry_NONE:
		if len(s.Endpoints) > 0 {
			c.fail("endpoints", "a ServiceEntry with resolution NONE has no endpoints", "write resolution: STATIC or DNS")
			return
		}
		c.warn("resolution", "NONE (the default) sends requests where they were addressed to, which needs interception; without it nothing is sent",
			"write resolution: STATIC with endpoints, or DNS")
	case networking.ServiceEntry_STATIC:
		if len(s.Endpoints) == 0 && s.WorkloadSelector == nil {
			c.warn("endpoints", "there are none: requests get 503", "add endpoints")
		}
	case networking.ServiceEntry_DNS:
	case networking.ServiceEntry_DNS_ROUND_ROBIN:
		if len(s.Endpoints) > 1 {
			c.fail("endpoints", "with DNS_ROUND_ROBIN there is at most one", "write resolution: DNS, or one endpoint")
		}
	default:
		c.absent("resolution")
	}
	for i, e := range s.Endpoints {
		c.endpoint(fmt.Sprintf("endpoints[%d]", i), e, s)
	}
}

func (c *checker) endpoint(field string, e *networking.WorkloadEntry, s *networking.ServiceEntry) {
	const unix = "unix://"
	_, notIP := netip.ParseAddr(e.GetAddress())
	switch {
	case e.GetAddress() == "":
		c.fail(field+".address", "the endpoint has no address", "")
	case strings.HasPrefix(e.Address, unix):
		where := strings.TrimPrefix(e.Address, unix)
		if s.Resolution != networking.ServiceEntry_STATIC {
			c.fail(field+".address", "a Unix socket is not resolved by DNS", "write resolution: STATIC")
		}
		if len(s.Ports) != 1 || len(e.Ports) > 0 {
			c.fail(field+".address", "a Unix socket serves one port, and endpoints on one have none of their own", "leave one port in the ServiceEntry and none in the endpoint")
		}
		if !path.IsAbs(where) && !strings.HasPrefix(where, "@") {
			c.fail(field+".address", fmt.Sprintf("%q is no absolute path", where), "write unix:///run/app.sock")
		}
		if len(where) > 107 {
			c.fail(field+".address", "the path of the socket is longer than 107 bytes", "")
		}
	case s.Resolution == networking.ServiceEntry_STATIC && notIP != nil:
		c.fail(field+".address", fmt.Sprintf("%q is no IP address", e.Address), "write an IP address, or resolution: DNS")
	case notIP != nil:
		c.host(field+".address", e.Address, false)
	}
	for _, name := range slices.Sorted(maps.Keys(e.GetPorts())) {
		here := fmt.Sprintf("%s.ports[%q]", field, name)
		if !slices.ContainsFunc(s.Ports, func(p *networking.ServicePort) bool { return p.GetName() == name }) {
			c.fail(here, fmt.Sprintf("the ServiceEntry has no port called %s", name), "name one of its ports")
		}
		c.port(here, e.Ports[name])
	}
	c.labels(field+".labels", e.GetLabels())
	if e.GetNetwork() != "" {
		c.without(field + ".network")
	}
	if parts := strings.Split(e.GetLocality(), "/"); len(parts) > 3 || e.GetLocality() != "" && slices.Contains(parts, "") {
		c.fail(field+".locality", fmt.Sprintf("%q is no locality", e.Locality), "write region, region/zone or region/zone/subzone")
	}
}
