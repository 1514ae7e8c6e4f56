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

// draft is a cluster under construction, with its HTTP options in decoded form.
type draft struct {
	*clusterv3.Cluster
	mesh     *mesh.Config
	protocol model.Protocol
	policy   policy
	// decoded HTTP options; nil: Envoy's default, HTTP/1.1 without limits
	http    *upstreamv3.HttpProtocolOptions
	secrets []ConfiguredSecret // secrets that the cluster refers to
	// mutual reports whether connections to an endpoint use automatic mutual TLS; nil: no endpoint
	// does
	mutual func(*model.Endpoint) bool
}

// options returns the cluster's HTTP options, and creates them if necessary.
func (d *draft) options() *upstreamv3.HttpProtocolOptions {
	if d.http == nil {
		d.http = &upstreamv3.HttpProtocolOptions{}
	}
	return d.http
}

// speaksHTTP2 reports whether the cluster sends all requests as HTTP/2.
func (d *draft) speaksHTTP2() bool {
	return d.http.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil
}

// finish encodes the HTTP options into the cluster and returns it.
func (d *draft) finish() *clusterv3.Cluster {
	if d.http != nil {
		if d.http.UpstreamProtocolOptions == nil {
			d.http.UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
				ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
					ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
						HttpProtocolOptions: &corev3.Http1ProtocolOptions{}}}}
		}
		d.TypedExtensionProtocolOptions = map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(d.http)}
	}
	d.AltStatName = mesh.DelimitedStatName(d.Name)
	return d.Cluster
}

// applyPool sets the cluster's limits of connections and requests.
func (d *draft) applyPool() {
	tcp, http := d.policy.pool.GetTcp(), d.policy.pool.GetHttp()
	d.ConnectTimeout = durationpb.New(d.mesh.ConnectTimeout)
	if tcp.GetConnectTimeout() != nil {
		d.ConnectTimeout = tcp.ConnectTimeout
	}
	limit := func(v int32) *wrapperspb.UInt32Value {
		if v <= 0 {
			return wrapperspb.UInt32(unlimited)
		}
		return wrapperspb.UInt32(uint32(v))
	}
	d.CircuitBreakers = &clusterv3.CircuitBreakers{
		Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections:     limit(tcp.GetMaxConnections()),
			MaxPendingRequests: limit(http.GetHttp1MaxPendingRequests()),
			MaxRequests:        limit(http.GetHttp2MaxRequests()),
			MaxRetries:         limit(http.GetMaxRetries()), TrackRemaining: true,
			RetryBudget: retryBudget(d.policy.retryBudget),
		}}}
	keepalive := tcp.GetTcpKeepalive()
	if keepalive == nil {
		keepalive = d.mesh.Keepalive
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
		d.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: settings}
	}
	d.applyHTTP(tcp, http)
}

// retryBudget returns the limit of retries relative to active requests. Istio's defaults are 20
// percent and at least 3.
func retryBudget(
	in *networking.TrafficPolicy_RetryBudget) *clusterv3.CircuitBreakers_Thresholds_RetryBudget {
	if in == nil {
		return nil
	}
	out := &clusterv3.CircuitBreakers_Thresholds_RetryBudget{BudgetPercent: &typev3.Percent{
		Value: 20}, BudgetInterval: in.BudgetInterval,
		MinRetryConcurrency: wrapperspb.UInt32(3)}
	if in.Percent != nil {
		out.BudgetPercent.Value = in.Percent.Value
	}
	if in.MinRetryConcurrency > 0 {
		out.MinRetryConcurrency.Value = in.MinRetryConcurrency
	}
	return out
}

// applyHTTP sets the protocol of requests and the lifetime of connections. The durations also apply
// to TCP.
func (d *draft) applyHTTP(tcp *networking.ConnectionPoolSettings_TCPSettings,
	http *networking.ConnectionPoolSettings_HTTPSettings) {
	upgrade := http.GetH2UpgradePolicy() ==
		networking.ConnectionPoolSettings_HTTPSettings_UPGRADE ||
		http.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_DEFAULT &&
			d.mesh.UpgradeHTTP2 && d.protocol.IsHTTP()
	two := &corev3.Http2ProtocolOptions{
		MaxConcurrentStreams: positive(http.GetMaxConcurrentStreams())}
	if keepalive := http.GetHttp2KeepAlive(); keepalive != nil {
		two.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: keepalive.Interval,
			Timeout: keepalive.Timeout}
	}
	switch {
	case http.GetUseClientProtocol(), d.protocol == model.AutoProtocol && !upgrade:
		d.options().UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &upstreamv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: two}}
	case d.protocol == model.HTTP2 || upgrade:
		d.options().UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: two}}}
	}
	common := &corev3.HttpProtocolOptions{IdleTimeout: http.GetIdleTimeout(),
		MaxRequestsPerConnection: positive(http.GetMaxRequestsPerConnection()),
		MaxConnectionDuration:    tcp.GetMaxConnectionDuration()}
	if common.IdleTimeout == nil {
		common.IdleTimeout = tcp.GetIdleTimeout()
	}
	if common.IdleTimeout != nil || common.MaxRequestsPerConnection != nil ||
		common.MaxConnectionDuration != nil {
		d.options().CommonHttpProtocolOptions = common
	}
}
