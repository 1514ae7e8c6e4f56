package translate

import (
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// reportUnused reports settings of a DestinationRule for ports that the service does not have, or
// that have no effect. It skips rules for wildcard hosts, which may match services with different
// ports.
func (out *Clusters) reportUnused(service *model.Service, rule *model.MergedDestinationRule) {
	if rule == nil || model.IsWildcard(rule.Host) {
		return
	}
	out.reportUnusedPolicy(service, rule.PolicyObject, "trafficPolicy", rule.Policy)
	for _, s := range rule.Subsets {
		out.reportUnusedPolicy(service, s.Object, fmt.Sprintf("subsets[%d].trafficPolicy", s.Index),
			s.TrafficPolicy)
	}
}

func (out *Clusters) reportUnusedPolicy(service *model.Service, o *object.Object, field string,
	p *networking.TrafficPolicy) {
	hashesNothing := func(field string, l *networking.LoadBalancerSettings, ports ...model.Port) {
		if hashesRequests(l) && !slices.ContainsFunc(ports, func(p model.Port) bool {
			return p.Protocol.MayBeHTTP()
		}) {
			out.Problems = append(out.Problems, o.Warning(field+".loadBalancer.consistentHash",
				fmt.Sprintf("has no effect for %s: connections there have no headers, cookies or "+
					"parameters, and go anywhere", service.Host),
				"write useSourceIp: true, or protocol: HTTP in the ServiceEntry"))
		}
	}
	if len(service.Ports) > 0 {
		hashesNothing(field, p.GetLoadBalancer(), service.Ports...)
	}
	for i, own := range p.GetPortLevelSettings() {
		field, number := fmt.Sprintf("%s.portLevelSettings[%d]", field, i),
			own.GetPort().GetNumber()
		port := service.Port(number)
		if port == nil {
			out.Problems = append(out.Problems, o.Warning(field+".port.number",
				fmt.Sprintf("%s has no port %d", service.Host, number),
				"name a port of the service"))
			continue
		}
		hashesNothing(field, own.LoadBalancer, *port)
	}
}

// hashesRequests reports whether a load balancer's hash depends on the request rather than the
// connection.
func hashesRequests(l *networking.LoadBalancerSettings) bool {
	switch l.GetConsistentHash().GetHashKey().(type) {
	case nil, *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		return false
	}
	return true
}
