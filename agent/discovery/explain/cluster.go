package explain

import (
	"fmt"
	"net"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"

	"outrider.org/outrider/agent/resource"
)

// mostEndpoints bounds the number of listed endpoints. Further ones are only counted.
const mostEndpoints = 20

// forward explains to which clusters a request is sent. If no cluster is usable, the answer gets
// the outcome and the status code that the parameters nothing and status name.
func (e *explanation) forward(targets []WeightedCluster, nothing Outcome, status int) {
	e.answer.Clusters = targets
	e.answer.Outcome = OutcomeForwarded
	usable := 0
	why, fix := "", ""
	for _, t := range targets {
		reason, remedy := e.cluster(t.Cluster)
		if reason == "" {
			usable++
		} else if why == "" {
			why, fix = reason, remedy
		}
	}
	switch {
	case usable == len(targets):
	case usable == 0:
		e.end(nothing, status, why, fix)
	default:
		e.unknown(
			"which of the clusters is taken by chance: of one that cannot be had the answer is %d",
			status)
	}
}

// cluster adds steps for a cluster and its endpoints to the explanation. If requests to the cluster
// fail, it returns the reason and the fix; otherwise both are "".
func (e *explanation) cluster(name string) (reason, fix string) {
	key := resource.Key{Type: resource.ClusterType, Name: name}
	r := e.proxy.Resources.Get(key)
	if r == nil {
		return fmt.Sprintf("there is no cluster %s", name), e.clusterFix(name)
	}
	c, err := decode(r, &clusterv3.Cluster{})
	if err != nil {
		return err.Error(), ""
	}
	kind := c.GetType().String()
	if custom := c.GetClusterType(); custom != nil {
		kind = strings.TrimPrefix(strings.TrimPrefix(custom.Name, "envoy.cluster."),
			"envoy.clusters.")
		if dns, ok := unpack(custom.GetTypedConfig(), &dnsv3.DnsCluster{}); ok &&
			dns.AllAddressesInSingleEndpoint {
			kind += ", all addresses as one endpoint"
		}
	}
	facts := []string{kind + ", " + c.LbPolicy.String()}
	facts = append(facts, e.upstream(c)...)
	if o := c.GetOutlierDetection(); o != nil {
		if n := o.GetConsecutive_5Xx().GetValue(); n > 0 {
			facts = append(facts, fmt.Sprintf("leaves out endpoints with %d errors in a row", n))
		} else {
			facts = append(facts, "leaves out endpoints with errors (outlier detection)")
		}
	}
	for _, check := range c.HealthChecks {
		what := "with a connection"
		if path := check.GetHttpHealthCheck().GetPath(); path != "" {
			what = "at " + path
		}
		facts = append(facts, fmt.Sprintf("checks endpoints every %v %s",
			check.GetInterval().AsDuration(), what))
	}
	live, counted := e.proxy.ClusterStats[name]
	if found := live.checkTLS(c); found != nil {
		e.unknown("whether requests get through: %s; %s", found.Message, found.Fix)
	}
	e.step("cluster", name, r.Origins, append(facts, e.refusal(key)...)...)
	if c.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		e.step("endpoints", name, nil, "where the connection was addressed to")
		return "", ""
	}
	if kind == "dynamic_forward_proxy" {
		e.step("endpoints", name, nil, "those that DNS gives for the host when a request arrives")
		e.unknown("the addresses of the host (DNS) but those of the loopback")
		return "", ""
	}
	assignment, origins := c.GetLoadAssignment(), r.Origins
	if c.GetEdsClusterConfig() != nil {
		service := c.EdsClusterConfig.ServiceName
		if service == "" {
			service = name
		}
		endpoints := e.proxy.Resources.Get(resource.Key{Type: resource.EndpointType, Name: service})
		if endpoints == nil {
			return fmt.Sprintf("nobody says what endpoints cluster %s has", name),
				e.clusterFix(name)
		}
		if assignment, err = decode(endpoints, &endpointv3.ClusterLoadAssignment{}); err != nil {
			return err.Error(), ""
		}
		origins = endpoints.Origins
	}
	reason, fix = e.endpoints(c, assignment, origins)
	if found := live.checkEndpoints(c); counted && reason == "" && found != nil {
		return found.Message, found.Fix
	}
	return reason, fix
}

func (e *explanation) endpoints(c *clusterv3.Cluster, assignment *endpointv3.ClusterLoadAssignment,
	origins []resource.Origin) (reason, fix string) {
	var facts []string
	var misfit mismatch
	name, total, usable := c.Name, 0, 0
	for _, locality := range assignment.GetEndpoints() {
		for _, ep := range locality.LbEndpoints {
			total++
			text := endpointText(locality, ep)
			found := e.mismatch(c, ep)
			if found.why != "" {
				misfit, text = found, text+", "+found.why
			}
			if !found.certain && ep.HealthStatus != corev3.HealthStatus_UNHEALTHY &&
				ep.HealthStatus != corev3.HealthStatus_DRAINING &&
				ep.HealthStatus != corev3.HealthStatus_TIMEOUT {
				usable++
			}
			if total <= mostEndpoints {
				facts = append(facts, text)
			}
		}
	}
	if total > mostEndpoints {
		facts = append(facts, fmt.Sprintf("and %d more", total-mostEndpoints))
	}
	if total > 0 {
		e.step("endpoints", name, origins, facts...)
	}
	switch {
	case usable == 0 && misfit.certain:
		return "the endpoint closes the connection: it " + misfit.why, misfit.fix
	case usable == 0:
		return fmt.Sprintf("cluster %s has no endpoint", name), e.clusterFix(name)
	case misfit.certain:
		e.unknown("which endpoint is chosen: one that %s answers 503", misfit.why)
	case misfit.why != "":
		e.unknown("whether a proxy of the mesh serves an endpoint that %s: it would close the "+
			"connection; %s", misfit.why, misfit.fix)
	}
	return "", ""
}

func endpointText(locality *endpointv3.LocalityLbEndpoints, ep *endpointv3.LbEndpoint) string {
	text := addressText(ep.GetEndpoint().GetAddress())
	if where := locality.GetLocality(); where != nil {
		text += " in " + strings.TrimRight(where.Region+"/"+where.Zone+"/"+where.SubZone, "/")
	}
	if weight := ep.GetLoadBalancingWeight().GetValue(); weight > 1 {
		text += fmt.Sprintf(", weight %d", weight)
	}
	if mutual(ep) {
		text += ", mutual TLS"
	}
	if locality.Priority > 0 {
		text += fmt.Sprintf(", priority %d", locality.Priority)
	}
	if ep.HealthStatus != corev3.HealthStatus_UNKNOWN &&
		ep.HealthStatus != corev3.HealthStatus_HEALTHY {
		text += ", " + strings.ToLower(ep.HealthStatus.String())
	}
	return text
}

func addressText(a *corev3.Address) string {
	if path := a.GetPipe().GetPath(); path != "" {
		return path
	}
	s := a.GetSocketAddress()
	return net.JoinHostPort(s.GetAddress(), fmt.Sprint(s.GetPortValue()))
}

// clusterFix returns how to correct a cluster whose name has Istio's form; "" for other names.
func (e *explanation) clusterFix(name string) string {
	parts := strings.SplitN(name, "|", 4)
	switch {
	case name == "BlackHoleCluster":
		return e.hostFix() + ", or outboundTrafficPolicy ALLOW_ANY"
	case len(parts) != 4 || parts[0] != "outbound":
		return ""
	case parts[2] != "":
		return fmt.Sprintf(
			"give a DestinationRule for %s the subset %s, with labels that "+
				"endpoints of its ServiceEntry have",
			parts[3], parts[2])
	}
	return fmt.Sprintf("add a ServiceEntry with the host %s, the port %s and an endpoint", parts[3],
		parts[1])
}
