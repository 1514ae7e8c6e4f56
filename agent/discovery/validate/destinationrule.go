package validate

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) destinationRule(d *networking.DestinationRule) {
	c.hostOrAddress("host", d.Host)
	c.trafficPolicy("trafficPolicy", d.TrafficPolicy)
	c.exportTo(d.ExportTo)
	if selector := d.WorkloadSelector; selector != nil {
		if len(selector.MatchLabels) == 0 {
			c.warn("workloadSelector",
				"asks for no label, and chooses every workload of the namespace",
				"write matchLabels")
		}
		c.selector("workloadSelector.matchLabels", selector.MatchLabels)
		for i, to := range d.ExportTo {
			if to != "." && to != c.namespace {
				c.fail(fmt.Sprintf("exportTo[%d]", i),
					"a rule for chosen workloads counts in its own namespace only",
					"write . or leave exportTo out")
			}
		}
	}
	names := map[string]bool{}
	for i, subset := range d.Subsets {
		field := fmt.Sprintf("subsets[%d]", i)
		switch {
		case !isDNSLabel(subset.GetName()):
			c.fail(field+".name", fmt.Sprintf("%q is no subset's name", subset.GetName()),
				"write letters, digits and -")
		case names[subset.Name]:
			c.fail(field+".name", fmt.Sprintf("a subset is called %s already", subset.Name),
				"rename one")
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
	if p.LoadBalancer == nil && p.ConnectionPool == nil && p.OutlierDetection == nil &&
		p.Tls == nil && len(p.PortLevelSettings) == 0 &&
		p.Tunnel == nil && p.ProxyProtocol == nil && p.RetryBudget == nil {
		c.fail(field, "the traffic policy says nothing", "remove it or fill it in")
	}
	if p.Tunnel != nil && p.ProxyProtocol != nil {
		c.fail(field+".tunnel", "excludes proxyProtocol, and both are given", "keep one")
	}
	c.loadBalancer(field+".loadBalancer", p.LoadBalancer, p.OutlierDetection)
	c.connectionPool(field+".connectionPool", p.ConnectionPool)
	c.outlierDetection(field+".outlierDetection", p.OutlierDetection)
	c.clientTLS(field+".tls", p.Tls)
	seen := map[uint32]bool{}
	for i, own := range p.PortLevelSettings {
		field := fmt.Sprintf("%s.portLevelSettings[%d]", field, i)
		c.port(field+".port.number", own.GetPort().GetNumber())
		if seen[own.GetPort().GetNumber()] {
			c.warn(field+".port.number", "the port has settings above already, which count",
				"remove one")
		}
		seen[own.GetPort().GetNumber()] = true
		if own.GetLoadBalancer() == nil && own.GetConnectionPool() == nil &&
			own.GetOutlierDetection() == nil && own.GetTls() == nil {
			c.fail(field, "the settings say nothing", "remove them or fill them in")
		}
		c.loadBalancer(field+".loadBalancer", own.GetLoadBalancer(), own.GetOutlierDetection())
		c.connectionPool(field+".connectionPool", own.GetConnectionPool())
		c.outlierDetection(field+".outlierDetection", own.GetOutlierDetection())
		c.clientTLS(field+".tls", own.GetTls())
	}
	c.tunnel(field+".tunnel", p.Tunnel)
	if p.ProxyProtocol != nil &&
		networking.TrafficPolicy_ProxyProtocol_VERSION_name[int32(p.ProxyProtocol.Version)] == "" {
		c.fail(field+".proxyProtocol.version", fmt.Sprintf("%d is no version",
			p.ProxyProtocol.Version), "write V1 or V2")
	}
	if budget := p.RetryBudget; budget != nil {
		if percent := budget.Percent; percent != nil && !(percent.Value >= 0 &&
			percent.Value <= 100) {
			c.fail(field+".retryBudget.percent", fmt.Sprintf("%v is no percentage", percent.Value),
				"write a number from 0 to 100")
		}
		c.duration(field+".retryBudget.budgetInterval", budget.BudgetInterval, true)
	}
}

// tunnel checks the settings for tunnels through an HTTP proxy.
func (c *checker) tunnel(field string, t *networking.TrafficPolicy_TunnelSettings) {
	if t == nil {
		return
	}
	if t.Protocol != "" && t.Protocol != "CONNECT" && t.Protocol != "POST" {
		c.fail(field+".protocol", fmt.Sprintf("%q is no way to open a tunnel", t.Protocol),
			"write CONNECT or POST")
	}
	if strings.HasPrefix(t.TargetHost, "*") {
		c.fail(field+".targetHost", "a pattern is no target", "write a host or an IP address")
	} else {
		c.hostOrAddress(field+".targetHost", t.TargetHost)
	}
	c.port(field+".targetPort", t.TargetPort)
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
		c.duration(field+".tcp.idleTimeout", tcp.IdleTimeout, true)
	}
	if http := p.Http; http != nil {
		for name, v := range map[string]int32{
			"http1MaxPendingRequests":  http.Http1MaxPendingRequests,
			"http2MaxRequests":         http.Http2MaxRequests,
			"maxRequestsPerConnection": http.MaxRequestsPerConnection,
			"maxRetries":               http.MaxRetries,
			"maxConcurrentStreams":     http.MaxConcurrentStreams} {
			c.natural(field+".http."+name, v)
		}
		c.duration(field+".http.idleTimeout", http.IdleTimeout, false)
		if http.UseClientProtocol &&
			http.H2UpgradePolicy == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
			c.fail(field+".http.h2UpgradePolicy", "excludes useClientProtocol, and both are given",
				"keep one")
		}
		if k := http.Http2KeepAlive; k != nil {
			c.duration(field+".http.http2KeepAlive.interval", k.Interval, false)
			c.duration(field+".http.http2KeepAlive.timeout", k.Timeout, false)
			if k.Interval == nil {
				c.fail(field+".http.http2KeepAlive.interval", "is missing",
					"say how often the other side is asked")
			}
			if k.Timeout == nil {
				c.fail(field+".http.http2KeepAlive.timeout", "is missing",
					"say how long an answer is waited for")
			}
		}
	}
}

func (c *checker) outlierDetection(field string, o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	if o.ConsecutiveErrors != 0 { //nolint:staticcheck // deprecated, still valid YAML
		c.warn(field+".consecutiveErrors", "is gone from Istio and has no effect",
			"write consecutive5xxErrors or consecutiveGatewayErrors")
	}
	if !o.SplitExternalLocalOriginErrors && o.ConsecutiveLocalOriginFailures.GetValue() > 0 {
		c.fail(field+".consecutiveLocalOriginFailures",
			"has no effect without splitExternalLocalOriginErrors",
			"write splitExternalLocalOriginErrors: true")
	}
	c.duration(field+".interval", o.Interval, false)
	c.duration(field+".baseEjectionTime", o.BaseEjectionTime, false)
	for name, v := range map[string]int32{"maxEjectionPercent": o.MaxEjectionPercent,
		"minHealthPercent": o.MinHealthPercent} {
		if v < 0 || v > 100 {
			c.fail(field+"."+name, fmt.Sprintf("%d is no percentage", v),
				"write a number from 0 to 100")
		}
	}
	for i, code := range o.OutlierDetectionHttpErrorCodes {
		if code < 100 || code > 599 {
			c.fail(fmt.Sprintf("%s.outlierDetectionHttpErrorCodes[%d]", field, i),
				fmt.Sprintf("%d is no status of HTTP", code), "write a number from 100 to 599")
		}
	}
}
