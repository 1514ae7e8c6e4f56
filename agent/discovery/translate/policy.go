package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
)

// policy is what counts for one port of a service or subset.
type policy struct {
	loadBalancer *networking.LoadBalancerSettings
	pool         *networking.ConnectionPoolSettings
	outlier      *networking.OutlierDetection
}

// override lays a traffic policy over what counts so far, as Istio does: field by field; settings of the port replace
// all of them.
func (p policy) override(by *networking.TrafficPolicy, port uint32) policy {
	if by == nil {
		return p
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
	for _, own := range by.PortLevelSettings {
		if own.GetPort().GetNumber() == port {
			return policy{loadBalancer: own.LoadBalancer, pool: own.ConnectionPool, outlier: own.OutlierDetection}
		}
	}
	return p
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

// apply writes the policy into a cluster of a port that speaks the given protocol.
func (p policy) apply(c *clusterv3.Cluster, protocol model.Protocol, m *mesh.Config) {
	p.applyPool(c, protocol, m)
	p.applyOutlier(c)
	c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	if hash := p.loadBalancer.GetConsistentHash(); hash != nil {
		applyHash(c, hash)
		return
	}
	switch p.loadBalancer.GetSimple() {
	case networking.LoadBalancerSettings_RANDOM:
		c.LbPolicy = clusterv3.Cluster_RANDOM
	case networking.LoadBalancerSettings_ROUND_ROBIN:
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	}
}

// smallestRing is Istio's default ring size.
const smallestRing = 1024

func applyHash(c *clusterv3.Cluster, hash *networking.LoadBalancerSettings_ConsistentHashLB) {
	if maglev := hash.GetMaglev(); maglev != nil {
		c.LbPolicy = clusterv3.Cluster_MAGLEV
		if maglev.TableSize != 0 {
			c.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: wrapperspb.UInt64(maglev.TableSize)}}
		}
		return
	}
	size := hash.GetRingHash().GetMinimumRingSize()
	if size == 0 {
		size = hash.GetMinimumRingSize() //nolint:staticcheck // deprecated, still valid YAML
	}
	if size == 0 {
		size = smallestRing
	}
	c.LbPolicy = clusterv3.Cluster_RING_HASH
	c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{MinimumRingSize: wrapperspb.UInt64(size)}}
}

func (p policy) applyOutlier(c *clusterv3.Cluster) {
	o := p.outlier
	if o == nil {
		return
	}
	enforce := func(count *wrapperspb.UInt32Value) *wrapperspb.UInt32Value {
		if count == nil {
			return nil
		}
		return wrapperspb.UInt32(min(count.Value, 1) * 100)
	}
	d := &clusterv3.OutlierDetection{
		EnforcingSuccessRate: wrapperspb.UInt32(0), // statistics over hosts is not what was asked for
		Interval:             o.Interval, BaseEjectionTime: o.BaseEjectionTime, MaxEjectionPercent: positive(o.MaxEjectionPercent),
		Consecutive_5Xx: o.Consecutive_5XxErrors, EnforcingConsecutive_5Xx: enforce(o.Consecutive_5XxErrors),
		ConsecutiveGatewayFailure: o.ConsecutiveGatewayErrors, EnforcingConsecutiveGatewayFailure: enforce(o.ConsecutiveGatewayErrors),
	}
	if o.SplitExternalLocalOriginErrors {
		d.SplitExternalLocalOriginErrors = true
		d.EnforcingLocalOriginSuccessRate = wrapperspb.UInt32(0)
		d.ConsecutiveLocalOriginFailure = o.ConsecutiveLocalOriginFailures
		d.EnforcingConsecutiveLocalOriginFailure = enforce(o.ConsecutiveLocalOriginFailures)
	}
	c.OutlierDetection = d
	// Envoy's own default of 50 % would send requests to ejected hosts of small services.
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: float64(max(o.MinHealthPercent, 0))}}
}

func (p policy) applyPool(c *clusterv3.Cluster, protocol model.Protocol, m *mesh.Config) {
	tcp, http := p.pool.GetTcp(), p.pool.GetHttp()
	c.ConnectTimeout = durationpb.New(m.ConnectTimeout)
	if tcp.GetConnectTimeout() != nil {
		c.ConnectTimeout = tcp.ConnectTimeout
	}
	limit := func(v int32) *wrapperspb.UInt32Value {
		if v <= 0 {
			return wrapperspb.UInt32(unlimited)
		}
		return wrapperspb.UInt32(uint32(v))
	}
	c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections: limit(tcp.GetMaxConnections()), MaxPendingRequests: limit(http.GetHttp1MaxPendingRequests()),
		MaxRequests: limit(http.GetHttp2MaxRequests()), MaxRetries: limit(http.GetMaxRetries()), TrackRemaining: true,
	}}}
	keepalive := tcp.GetTcpKeepalive()
	if keepalive == nil {
		keepalive = m.Keepalive
	}
	if keepalive != nil {
		settings := &corev3.TcpKeepalive{}
		if keepalive.Probes > 0 {
			settings.KeepaliveProbes = wrapperspb.UInt32(keepalive.Probes)
		}
		if keepalive.Time != nil {
			settings.KeepaliveTime = wrapperspb.UInt32(uint32(keepalive.Time.Seconds))
		}
		if keepalive.Interval != nil {
			settings.KeepaliveInterval = wrapperspb.UInt32(uint32(keepalive.Interval.Seconds))
		}
		c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: settings}
	}
	if options := httpOptions(tcp, http, protocol, m); options != nil {
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(options)}
	}
}

// httpOptions says how requests are sent; nil is Envoy's default, HTTP/1.1 with no limits.
func httpOptions(tcp *networking.ConnectionPoolSettings_TCPSettings, http *networking.ConnectionPoolSettings_HTTPSettings, protocol model.Protocol, m *mesh.Config) *upstreamv3.HttpProtocolOptions {
	if !protocol.IsHTTP() {
		return nil
	}
	common := &corev3.HttpProtocolOptions{IdleTimeout: http.GetIdleTimeout(), MaxRequestsPerConnection: positive(http.GetMaxRequestsPerConnection()),
		MaxConnectionDuration: tcp.GetMaxConnectionDuration()}
	given := common.IdleTimeout != nil || common.MaxRequestsPerConnection != nil || common.MaxConnectionDuration != nil
	upgrade := http.GetH2UpgradePolicy()
	two := protocol == model.HTTP2 || upgrade == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE ||
		upgrade == networking.ConnectionPoolSettings_HTTPSettings_DEFAULT && m.UpgradeHTTP2
	if !given && !two && !http.GetUseClientProtocol() {
		return nil
	}
	options := &upstreamv3.HttpProtocolOptions{}
	if given {
		options.CommonHttpProtocolOptions = common
	}
	http2 := &corev3.Http2ProtocolOptions{MaxConcurrentStreams: positive(http.GetMaxConcurrentStreams())}
	if keepalive := http.GetHttp2KeepAlive(); keepalive != nil {
		http2.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: keepalive.Interval, Timeout: keepalive.Timeout}
	}
	switch {
	case http.GetUseClientProtocol():
		options.UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &upstreamv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: http2}}
	case two:
		options.UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: http2}}}
	default:
		options.UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}}}}
	}
	return options
}
