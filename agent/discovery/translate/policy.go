package translate

import (
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

// policy is the effective traffic policy for one port of a service or subset.
type policy struct {
	loadBalancer  *networking.LoadBalancerSettings
	pool          *networking.ConnectionPoolSettings
	outlier       *networking.OutlierDetection
	tls           *networking.ClientTLSSettings
	proxyProtocol *networking.TrafficPolicy_ProxyProtocol
	retryBudget   *networking.TrafficPolicy_RetryBudget
}

// policyFor returns the settings of a DestinationRule (nil: none) for a port of a subset ("": the
// service itself).
func policyFor(rule *model.MergedDestinationRule, port uint32, subset string) policy {
	if rule == nil {
		return policy{}
	}
	p := policy{}.override(rule.Policy, port)
	if s := rule.Subset(subset); s != nil && subset != "" {
		p = p.override(s.TrafficPolicy, port)
	}
	return p
}

// override merges the traffic policy by into p, and returns the result. As in Istio, each section
// of by, such as connectionPool, completely replaces the same section of p. If by has settings for
// the port, they replace the sections that a port can have (load balancer, connection pool, outlier
// detection and TLS), and those of these sections that they lack get defaults.
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

// tlsMode returns the TLS mode that a DestinationRule sets for endpoints of a port; nil: none. As
// in Istio, and unlike override, port settings without TLS do not hide the rule's TLS settings.
func tlsMode(rule *model.MergedDestinationRule, port uint32,
	subset string) *networking.ClientTLSSettings_TLSmode {
	if rule == nil {
		return nil
	}
	policies := []*networking.TrafficPolicy{rule.Policy}
	if s := rule.Subset(subset); s != nil && subset != "" {
		policies = []*networking.TrafficPolicy{s.TrafficPolicy, rule.Policy}
	}
	for _, p := range policies {
		tls := p.GetTls()
		for _, own := range p.GetPortLevelSettings() {
			if own.GetPort().GetNumber() == port && own.Tls != nil {
				tls = own.Tls
			}
		}
		if tls != nil {
			return &tls.Mode
		}
	}
	return nil
}

// tunnelOf returns the tunnel settings of a subset ("": the service itself), nil if it has none. As
// in Istio, a subset does not inherit them, and there are none for ports.
func tunnelOf(rule *model.MergedDestinationRule,
	subset string) *networking.TrafficPolicy_TunnelSettings {
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

// ConnectionPool returns the connection pool settings of a DestinationRule (nil: none) for a port
// of the service.
func ConnectionPool(rule *model.MergedDestinationRule,
	port uint32) *networking.ConnectionPoolSettings {
	return policyFor(rule, port, "").pool
}
