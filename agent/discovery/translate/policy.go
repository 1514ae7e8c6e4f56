package translate

import (
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

// policy is what counts for one port of a service or subset.
type policy struct {
	loadBalancer  *networking.LoadBalancerSettings
	pool          *networking.ConnectionPoolSettings
	outlier       *networking.OutlierDetection
	tls           *networking.ClientTLSSettings
	proxyProtocol *networking.TrafficPolicy_ProxyProtocol
	retryBudget   *networking.TrafficPolicy_RetryBudget
}

// policyFor is what a rule (nil: none) says of a port of a subset ("": of the service itself).
func policyFor(rule *model.Rule, port uint32, subset string) policy {
	if rule == nil {
		return policy{}
	}
	p := policy{}.override(rule.Policy, port)
	if s := rule.Subset(subset); s != nil && subset != "" {
		p = p.override(s.TrafficPolicy, port)
	}
	return p
}

// override lays a traffic policy over what counts so far, as Istio does: kind by kind. Where it has
// settings of the port, these alone count of it, and what they leave out is as if nobody had said
// anything.
func (p policy) override(by *networking.TrafficPolicy, port uint32) policy {
	if by == nil {
		return p
	}
	for _, own := range by.PortLevelSettings {
		if own.GetPort().GetNumber() == port {
			p.loadBalancer, p.pool, p.outlier, p.tls = own.LoadBalancer, own.ConnectionPool,
				own.OutlierDetection, own.Tls
			return p
		}
	}
	if by.LoadBalancer != nil {
		p.loadBalancer = by.LoadBalancer
	}
	if by.ConnectionPool != nil {
		p.pool = by.ConnectionPool
	}
	if by.OutlierDetection != nil {
		p.outlier = by.OutlierDetection
	}
	if by.Tls != nil {
		p.tls = by.Tls
	}
	if by.ProxyProtocol != nil {
		p.proxyProtocol = by.ProxyProtocol
	}
	if by.RetryBudget != nil {
		p.retryBudget = by.RetryBudget
	}
	return p
}

// tunnelOf is how connections to a subset ("": to the service itself) are carried over a proxy;
// nil: they are not. As in Istio a subset does not take it over from the rule, and settings of a
// port say nothing of it.
func tunnelOf(rule *model.Rule, subset string) *networking.TrafficPolicy_TunnelSettings {
	switch {
	case rule == nil:
		return nil
	case subset == "":
		return rule.Policy.GetTunnel()
	}
	if s := rule.Subset(subset); s != nil {
		return s.TrafficPolicy.GetTunnel()
	}
	return nil
}

// ConnectionPool is what a rule (nil: none) says of connections to a port of the service.
func ConnectionPool(rule *model.Rule, port uint32) *networking.ConnectionPoolSettings {
	return policyFor(rule, port, "").pool
}
