package render

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/bootstrap"
)

// Names of the clusters, as in Istio: an istiod refers to some of them.
const (
	DiscoveryCluster = "xds-grpc"
	SecretCluster    = "sds-grpc"
	adminCluster     = "prometheus_stats" // named as in Istio's bootstrap
	agentCluster     = "agent"
	metricsCluster   = "envoy_metrics_service"
	accessLogCluster = "envoy_accesslog_service"
	zipkinCluster    = "zipkin"
	datadogCluster   = "datadog_agent"
	lightstepCluster = "lightstep"
	otlpCluster      = "opentelemetry"
	// timeout of connecting to the agent or to the admin socket
	localTimeout       = 250 * time.Millisecond
	secretTimeout      = time.Second
	defaultTimeout     = time.Second
	defaultDNSRefresh  = 300 * time.Second
	adminMode          = 0o660 // mode of the admin socket: for Envoy's user and its group
	monitorInterval    = 250 * time.Millisecond
	connectionsMonitor = "envoy.resource_monitors.global_downstream_max_connections"
)

// builder builds a bootstrap and collects all errors of its input.
type builder struct {
	in   bootstrap.Input
	errs []error
}

func (b *builder) fail(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf(format, args...))
}

// pack encodes the configuration of an extension deterministically.
func (b *builder) pack(message proto.Message) *anypb.Any {
	if v, ok := message.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			b.errs = append(b.errs, err)
		}
	}
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, message,
		proto.MarshalOptions{Deterministic: true}); err != nil {
		b.errs = append(b.errs, err)
	}
	return packed
}

// buildBootstrap returns the bootstrap for the input, or all errors.
func buildBootstrap(in bootstrap.Input) (*bootstrapv3.Bootstrap, error) {
	b := &builder{in: in}
	built := &bootstrapv3.Bootstrap{
		Node:             b.node(),
		Admin:            b.admin(),
		DynamicResources: b.dynamicResources(),
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: b.clusters(),
			Listeners: b.listeners()},
		ClusterManager: b.clusterManager(),
		StatsConfig:    b.statsConfig(),
		StatsSinks:     b.statsSinks(),
		// A cluster has some 70 traffic statistics. Creating them on first use, as Istio does,
		// saves a quarter of the CPU time of a start with 100 services.
		DeferredStatOptions: &bootstrapv3.Bootstrap_DeferredStatOptions{
			EnableDeferredCreationStats: true},
		OverloadManager: b.overloadManager(),
		LayeredRuntime:  b.layeredRuntime(),
		Tracing:         b.tracing(), //nolint:staticcheck // for listeners without a provider
	}
	if len(b.errs) == 0 {
		if err := built.ValidateAll(); err != nil {
			b.errs = append(b.errs, err)
		}
	}
	if err := errors.Join(b.errs...); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return built, nil
}

// admin returns an admin interface on a Unix socket of the epoch. On a TCP port every local user
// could stop Envoy, and two epochs could not be distinguished.
func (b *builder) admin() *bootstrapv3.Admin {
	if b.in.AdminSocket == "" {
		b.fail("the path of the admin socket is missing")
	}
	return &bootstrapv3.Admin{
		Address:               b.pipe(b.in.AdminSocket, adminMode),
		IgnoreGlobalConnLimit: true,
	}
}

func (b *builder) dynamicResources() *bootstrapv3.Bootstrap_DynamicResources {
	if b.in.Discovery.Socket == "" && b.in.Discovery.Upstream == nil {
		return nil
	}
	source := func() *corev3.ConfigSource {
		return &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			ResourceApiVersion:    corev3.ApiVersion_V3,
			// 0 = no timeout: Envoy must not become live without its configuration.
			InitialFetchTimeout: durationpb.New(0),
		}
	}
	kind := corev3.ApiConfigSource_GRPC
	if b.in.Discovery.Delta {
		kind = corev3.ApiConfigSource_DELTA_GRPC
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		LdsConfig: source(),
		CdsConfig: source(),
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:                   kind,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices:              []*corev3.GrpcService{grpcService(DiscoveryCluster)},
		},
	}
}

func (b *builder) clusters() []*clusterv3.Cluster {
	var clusters []*clusterv3.Cluster
	queriesAdmin := b.in.Prometheus != "" || b.in.Ready.Address != "" && b.in.Ready.Backend == ""
	if queriesAdmin && b.in.AdminSocket != "" {
		clusters = append(clusters, b.pipeCluster(adminCluster, b.in.AdminSocket, localTimeout))
	}
	if b.in.Ready.Address != "" && b.in.Ready.Backend != "" {
		backend := b.serviceCluster(agentCluster, &bootstrap.Server{Address: b.in.Ready.Backend},
			false)
		backend.ConnectTimeout = durationpb.New(localTimeout)
		clusters = append(clusters, backend)
	}
	if b.in.SDSSocket != "" {
		clusters = append(clusters, b.grpcPipeCluster(SecretCluster, b.in.SDSSocket, secretTimeout))
	}
	if b.in.CredentialSocket != "" {
		clusters = append(clusters,
			b.grpcPipeCluster(credential.SDSClusterName, b.in.CredentialSocket,
				secretTimeout))
	}
	if b.in.ExternalSDSSocket != "" {
		clusters = append(clusters, b.grpcPipeCluster(credential.ExternalSDSClusterName,
			b.in.ExternalSDSSocket,
			secretTimeout))
	}
	switch {
	case b.in.Discovery.Socket != "":
		clusters = append(clusters, unlimited(b.grpcPipeCluster(DiscoveryCluster,
			b.in.Discovery.Socket, b.connectTimeout())))
	case b.in.Discovery.Upstream != nil:
		clusters = append(clusters, unlimited(b.serviceCluster(DiscoveryCluster,
			b.in.Discovery.Upstream, true)))
	}
	if b.in.Tracing != nil {
		if cluster := b.tracingCluster(); cluster != nil {
			clusters = append(clusters, cluster)
		}
	}
	if b.in.MetricsService != nil {
		clusters = append(clusters, b.serviceCluster(metricsCluster, b.in.MetricsService, true))
	}
	if b.in.AccessLogService != nil { // referred to by listeners that come from an istiod
		clusters = append(clusters, b.serviceCluster(accessLogCluster, b.in.AccessLogService, true))
	}
	return clusters
}

func (b *builder) listeners() []*listenerv3.Listener {
	var listeners []*listenerv3.Listener
	if b.in.Prometheus != "" {
		if listener := b.prometheusListener(); listener != nil {
			listeners = append(listeners, listener)
		}
	}
	if b.in.Ready.Address != "" {
		if listener := b.readyListener(); listener != nil {
			listeners = append(listeners, listener)
		}
	}
	return listeners
}

func (b *builder) clusterManager() *bootstrapv3.ClusterManager {
	if b.in.OutlierLogPath == "" {
		return nil
	}
	return &bootstrapv3.ClusterManager{
		OutlierDetection: &bootstrapv3.ClusterManager_OutlierDetection{
			EventLogPath: b.in.OutlierLogPath},
	}
}

func (b *builder) statsSinks() []*metricsv3.StatsSink {
	var sinks []*metricsv3.StatsSink
	if b.in.MetricsService != nil {
		sinks = append(sinks, b.sink("envoy.stat_sinks.metrics_service",
			&metricsv3.MetricsServiceConfig{
				TransportApiVersion: corev3.ApiVersion_V3,
				GrpcService:         grpcService(metricsCluster),
			}))
	}
	if b.in.StatsdAddress != "" {
		address, err := ipAddress(b.in.StatsdAddress, corev3.SocketAddress_UDP)
		if err != nil {
			b.fail("statsd address: %w (Envoy's statsd sink resolves no names)", err)
			return sinks
		}
		sinks = append(sinks, b.sink("envoy.stat_sinks.statsd", &metricsv3.StatsdSink{
			StatsdSpecifier: &metricsv3.StatsdSink_Address{Address: address},
		}))
	}
	return sinks
}

func (b *builder) sink(name string, config proto.Message) *metricsv3.StatsSink {
	return &metricsv3.StatsSink{Name: name,
		ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: b.pack(config)}}
}

// overloadManager limits client connections. Without a limit Envoy logs a warning, so "no limit" is
// rendered as a limit that cannot be reached.
func (b *builder) overloadManager() *overloadv3.OverloadManager {
	limit := int64(math.MaxInt64)
	if b.in.MaxConnections > 0 && b.in.MaxConnections < math.MaxInt64 {
		limit = int64(b.in.MaxConnections)
	}
	config := &connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: limit}
	return &overloadv3.OverloadManager{
		RefreshInterval: durationpb.New(monitorInterval),
		ResourceMonitors: []*overloadv3.ResourceMonitor{{
			Name:       connectionsMonitor,
			ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: b.pack(config)},
		}},
	}
}

// maxRegexProgram is Istio's value. By default Envoy rejects all routes of a port for one regular
// expression of more than 100 instructions.
const maxRegexProgram = 32768

// capturedListeners returns the names of the listeners of captured connections, both of the
// embedded server and of an istiod.
func capturedListeners() []string { return []string{"virtualOutbound", "virtualInbound"} }

// layeredRuntime includes the layer of the admin interface, which Envoy has by default.
func (b *builder) layeredRuntime() *bootstrapv3.LayeredRuntime {
	values := map[string]*structpb.Value{
		"re2.max_program_size.error_level": structpb.NewNumberValue(maxRegexProgram),
	}
	for _, name := range capturedListeners() {
		if b.in.MaxCapturedConnections > 0 {
			values["envoy.resource_limits.listener."+name+".connection_limit"] =
				structpb.NewNumberValue(float64(b.in.MaxCapturedConnections))
		}
	}
	if b.in.Tracing != nil {
		values["tracing.random_sampling"] = b.sampling()
	}
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
		{Name: "outrider", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{
			StaticLayer: &structpb.Struct{Fields: values}}},
		{Name: "admin", LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{
			AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}}},
	}}
}

func (b *builder) connectTimeout() time.Duration {
	return cmp.Or(b.in.ConnectTimeout, defaultTimeout)
}

func (b *builder) dnsRefreshRate() time.Duration {
	return cmp.Or(b.in.DNSRefreshRate, defaultDNSRefresh)
}
