package validate

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) destinationRule(d *networking.DestinationRule) {
	c.hostOrAddress("host", d.Host)
	c.trafficPolicy("trafficPolicy", d.TrafficPolicy)
	c.exportTo(d.ExportTo)
	if d.WorkloadSelector != nil {
		c.absent("workloadSelector")
	}
	names := map[string]bool{}
	for i, subset := range d.Subsets {
		field := fmt.Sprintf("subsets[%d]", i)
		switch {
		case !dnsLabel.MatchString(subset.GetName()):
			c.fail(field+".name", fmt.Sprintf("%q is no subset's name", subset.GetName()), "write letters, digits and -")
		case names[subset.Name]:
			c.fail(field+".name", fmt.Sprintf("a subset is called %s already", subset.Name), "rename one")
		}
		names[subset.GetName()] = true
		c.labels(field+".labels", subset.GetLabels())
		c.trafficPolicy(field+".trafficPolicy", subset.GetTrafficPolicy())
	}
}

func (c *checker) trafficPolicy(field string, p *networking.TrafficPolicy) {
	if p == nil {
		return
	}
	if p.LoadBalancer == nil && p.ConnectionPool == nil && p.OutlierDetection == nil && p.Tls == nil && len(p.PortLevelSettings) == 0 &&
		p.Tunnel == nil && p.ProxyProtocol == nil && p.RetryBudget == nil {
		c.fail(field, "the traffic policy says nothing", "remove it or fill it in")
	}
	c.loadBalancer(field+".loadBalancer", p.LoadBalancer)
	c.connectionPool(field+".connectionPool", p.ConnectionPool)
	c.outlierDetection(field+".outlierDetection", p.OutlierDetection)
	c.clientTLS(field+".tls", p.Tls)
	seen := map[uint32]bool{}
	for i, own := range p.PortLevelSettings {
		field := fmt.Sprintf("%s.portLevelSettings[%d]", field, i)
		c.port(field+".port.number", own.GetPort().GetNumber())
		if seen[own.GetPort().GetNumber()] {
			c.warn(field+".port.number", "the port has settings above already, which count", "remove one")
		}
		seen[own.GetPort().GetNumber()] = true
		c.loadBalancer(field+".loadBalancer", own.GetLoadBalancer())
		c.connectionPool(field+".connectionPool", own.GetConnectionPool())
		c.outlierDetection(field+".outlierDetection", own.GetOutlierDetection())
		c.clientTLS(field+".tls", own.GetTls())
	}
	if p.Tunnel != nil {
		c.absent(field + ".tunnel")
	}
	if p.ProxyProtocol != nil {
		c.absent(field + ".proxyProtocol")
	}
	if p.RetryBudget != nil {
		c.without(field + ".retryBudget")
	}
}

func (c *checker) clientTLS(field string, t *networking.ClientTLSSettings) {
	if t != nil && t.Mode != networking.ClientTLSSettings_DISABLE {
		c.absent(field + ".mode") // requests would leave unencrypted
	}
}

func (c *checker) loadBalancer(field string, l *networking.LoadBalancerSettings) {
	if l == nil {
		return
	}
	if l.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
		c.fail(field+".simple", "PASSTHROUGH sends requests where they were addressed to, which needs interception", "write LEAST_REQUEST, ROUND_ROBIN or RANDOM")
	}
	if l.LocalityLbSetting != nil {
		c.without(field + ".localityLbSetting")
	}
	if l.ZoneAwareLbSetting != nil {
		c.without(field + ".zoneAwareLbSetting")
	}
	if l.Warmup != nil {
		c.without(field + ".warmup")
	}
	if l.WarmupDurationSecs != nil { //nolint:staticcheck // deprecated, still valid YAML
		c.without(field + ".warmupDurationSecs")
	}
	hash := l.GetConsistentHash()
	if hash == nil {
		return
	}
	field += ".consistentHash"
	switch key := hash.HashKey.(type) {
	case nil:
		c.fail(field, "it is not said what is hashed", "write httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		c.header(field+".httpHeaderName", key.HttpHeaderName)
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		if key.HttpQueryParameterName == "" {
			c.fail(field+".httpQueryParameterName", "is empty", "")
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		if key.HttpCookie.GetName() == "" {
			c.fail(field+".httpCookie.name", "the cookie has no name", "")
		}
		if ttl := key.HttpCookie.GetTtl(); ttl != nil && ttl.AsDuration() < 0 {
			c.fail(field+".httpCookie.ttl", "is negative", "")
		}
		for i, a := range key.HttpCookie.GetAttributes() {
			if a.GetName() == "" {
				c.fail(fmt.Sprintf("%s.httpCookie.attributes[%d].name", field, i), "the attribute has no name", "")
			}
		}
	}
	const largestRing, largestTable = 8 << 20, 5_000_011
	ring := hash.GetRingHash().GetMinimumRingSize()
	if ring > largestRing || hash.MinimumRingSize > largestRing { //nolint:staticcheck // deprecated, still valid YAML
		c.fail(field, fmt.Sprintf("a ring has at most %d entries", largestRing), "")
	}
	if size := hash.GetMaglev().GetTableSize(); size != 0 && (size > largestTable || !prime(size)) {
		c.fail(field+".maglev.tableSize", fmt.Sprintf("%d is no prime up to %d", size, largestTable), "leave it out for 65537")
	}
}

func prime(n uint64) bool {
	for d := uint64(2); d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n > 1
}

func (c *checker) connectionPool(field string, p *networking.ConnectionPoolSettings) {
	if p == nil {
		return
	}
	if p.Http == nil && p.Tcp == nil {
		c.fail(field, "the connection pool says nothing", "write http or tcp in it, or remove it")
	}
	if tcp := p.Tcp; tcp != nil {
		c.natural(field+".tcp.maxConnections", tcp.MaxConnections)
		c.duration(field+".tcp.connectTimeout", tcp.ConnectTimeout, false)
		c.duration(field+".tcp.maxConnectionDuration", tcp.MaxConnectionDuration, false)
		c.duration(field+".tcp.tcpKeepalive.time", tcp.GetTcpKeepalive().GetTime(), false)
		c.duration(field+".tcp.tcpKeepalive.interval", tcp.GetTcpKeepalive().GetInterval(), false)
		if tcp.IdleTimeout != nil {
			c.without(field + ".tcp.idleTimeout")
		}
	}
	if http := p.Http; http != nil {
		for name, v := range map[string]int32{"http1MaxPendingRequests": http.Http1MaxPendingRequests, "http2MaxRequests": http.Http2MaxRequests,
			"maxRequestsPerConnection": http.MaxRequestsPerConnection, "maxRetries": http.MaxRetries, "maxConcurrentStreams": http.MaxConcurrentStreams} {
			c.natural(field+".http."+name, v)
		}
		c.duration(field+".http.idleTimeout", http.IdleTimeout, true)
		if http.UseClientProtocol && http.H2UpgradePolicy == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
			c.fail(field+".http.h2UpgradePolicy", "excludes useClientProtocol, and both are given", "keep one")
		}
		if k := http.Http2KeepAlive; k != nil {
			c.duration(field+".http.http2KeepAlive.interval", k.Interval, false)
			c.duration(field+".http.http2KeepAlive.timeout", k.Timeout, false)
			if k.Timeout == nil {
				c.fail(field+".http.http2KeepAlive.timeout", "is missing", "say how long an answer is waited for")
			}
		}
	}
}

func (c *checker) outlierDetection(field string, o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	if o.ConsecutiveErrors != 0 { //nolint:staticcheck // deprecated, still valid YAML
		c.fail(field+".consecutiveErrors", "is gone from Istio", "write consecutive5xxErrors or consecutiveGatewayErrors")
	}
	if !o.SplitExternalLocalOriginErrors && o.ConsecutiveLocalOriginFailures.GetValue() > 0 {
		c.fail(field+".consecutiveLocalOriginFailures", "has no effect without splitExternalLocalOriginErrors", "write splitExternalLocalOriginErrors: true")
	}
	c.duration(field+".interval", o.Interval, false)
	c.duration(field+".baseEjectionTime", o.BaseEjectionTime, false)
	for name, v := range map[string]int32{"maxEjectionPercent": o.MaxEjectionPercent, "minHealthPercent": o.MinHealthPercent} {
		if v < 0 || v > 100 {
			c.fail(field+"."+name, fmt.Sprintf("%d is no percentage", v), "write a number from 0 to 100")
		}
	}
	if len(o.OutlierDetectionHttpErrorCodes) > 0 {
		c.without(field + ".outlierDetectionHttpErrorCodes")
	}
}
