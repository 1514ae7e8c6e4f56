package validate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

// endpoint checks an endpoint of the ServiceEntry s, or a WorkloadEntry if s is nil. prefix is the
// path of its fields.
func (c *checker) endpoint(prefix string, e *networking.WorkloadEntry, s *networking.ServiceEntry) {
	_, err := netip.ParseAddr(e.Address)
	switch {
	case e.Address == "" && e.Network == "":
		c.fail(prefix+"address", "the endpoint has no address",
			"write an IP address, a host name or unix:///path")
	case e.Address == "":
		c.warn(prefix+"address",
			"is missing: an endpoint of another network needs a gateway, and nobody knows one; nothing is "+
				"sent to it",
			"write its address")
	case strings.HasPrefix(e.Address, model.UnixScheme):
		c.socketEndpoint(prefix, e, s)
	case err != nil && s != nil && !byDNS(s):
		c.fail(prefix+"address", fmt.Sprintf("%q is no IP address", e.Address),
			"write an IP address, or resolution: DNS")
	case err != nil:
		c.host(prefix+"address", e.Address, false)
	}
	c.workload(prefix, e)
	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		if s != nil && !slices.ContainsFunc(s.Ports,
			func(p *networking.ServicePort) bool { return p.GetName() == name }) {
			c.fail(fmt.Sprintf("%sports[%q]", prefix, name),
				fmt.Sprintf("the ServiceEntry has no port called %s", name),
				"name one of its ports")
		}
	}
}

func (c *checker) socketEndpoint(prefix string, e *networking.WorkloadEntry,
	s *networking.ServiceEntry) {
	where := strings.TrimPrefix(e.Address, model.UnixScheme)
	if s != nil && s.Resolution != networking.ServiceEntry_STATIC {
		c.fail(prefix+"address", "a Unix socket is not resolved by DNS", "write resolution: STATIC")
	}
	if len(e.Ports) > 0 || s != nil && len(s.Ports) != 1 {
		c.fail(prefix+"address",
			"a Unix socket serves one port, and endpoints on one have none of their own",
			"leave one port in the ServiceEntry and none in the endpoint")
	}
	c.socket(prefix+"address", where)
}

// workload checks the fields that WorkloadEntries and the templates of WorkloadGroups have in
// common.
func (c *checker) workload(prefix string, e *networking.WorkloadEntry) {
	c.workloadBounds(prefix, e)
	for _, name := range slices.Sorted(maps.Keys(e.GetPorts())) {
		field := fmt.Sprintf("%sports[%q]", prefix, name)
		if !isDNSLabel(name) {
			c.fail(field, fmt.Sprintf("%q is no port's name", name), "write letters, digits and -")
		}
		c.port(field, e.Ports[name])
	}
	c.labels(prefix+"labels", e.GetLabels())
	if parts := strings.Split(e.GetLocality(), "/"); len(parts) > 3 || e.GetLocality() != "" &&
		slices.Contains(parts, "") {
		c.fail(prefix+"locality", fmt.Sprintf("%q is no locality", e.Locality),
			"write region, region/zone or region/zone/subzone")
	}
}

// workloadGroup checks a WorkloadGroup, which is a template for workloads that register themselves.
func (c *checker) workloadGroup(g *networking.WorkloadGroup) {
	if g.Template == nil {
		c.fail("template", "is missing",
			"say what the workloads of the group have in common, at least template: {}")
	} else {
		c.workload("template.", g.Template)
		if g.Template.Address != "" {
			c.warn("template.address", "has no effect: every workload has an address of its own",
				"remove it")
		}
	}
	c.labels("metadata.labels", g.GetMetadata().GetLabels())
	c.probe("probe", g.Probe)
}

// probeHeader has the characters that Kubernetes permits in names of headers in probes.
const probeHeader = "-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func (c *checker) probe(field string, p *networking.ReadinessProbe) {
	if p == nil {
		return
	}
	c.natural(field+".initialDelaySeconds", p.InitialDelaySeconds)
	c.natural(field+".timeoutSeconds", p.TimeoutSeconds)
	c.natural(field+".periodSeconds", p.PeriodSeconds)
	c.natural(field+".successThreshold", p.SuccessThreshold)
	c.natural(field+".failureThreshold", p.FailureThreshold)
	switch method := p.HealthCheckMethod.(type) {
	case *networking.ReadinessProbe_HttpGet:
		c.port(field+".httpGet.port", method.HttpGet.GetPort())
		if scheme := method.HttpGet.GetScheme(); scheme != "" && scheme != "HTTP" &&
			scheme != "HTTPS" {
			c.fail(field+".httpGet.scheme", fmt.Sprintf("%q is no scheme", scheme),
				"write HTTP or HTTPS")
		}
		for i, h := range method.HttpGet.GetHttpHeaders() {
			if name := h.GetName(); strings.Trim(name, probeHeader) != "" || name == "" {
				c.fail(fmt.Sprintf("%s.httpGet.httpHeaders[%d].name", field, i),
					fmt.Sprintf("%q is no header's name", name), "write letters, digits, - and _")
			}
		}
	case *networking.ReadinessProbe_TcpSocket:
		c.port(field+".tcpSocket.port", method.TcpSocket.GetPort())
	case *networking.ReadinessProbe_Grpc:
		c.port(field+".grpc.port", method.Grpc.GetPort())
	case *networking.ReadinessProbe_Exec:
		if len(method.Exec.GetCommand()) == 0 {
			c.fail(field+".exec.command", "is missing", "write the program and its arguments")
		}
	default:
		c.fail(field, "it is not said how health is asked",
			"write httpGet, tcpSocket, exec or grpc")
	}
}
