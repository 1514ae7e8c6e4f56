package translate

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	detectorsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/resource_detectors/v3"
	samplersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/samplers/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
)

const (
	// defaultSampling is Istio's percentage of requests with spans (PILOT_TRACE_SAMPLING).
	defaultSampling = 1.0
	// exportTimeout bounds calls to a collector, so that calls to one that does not answer do not
	// pile up. istiod sets the same value for Zipkin, and none for OpenTelemetry over gRPC.
	exportTimeout = 5 * time.Second
	timeoutHeader = "x-envoy-upstream-rq-timeout-ms"
)

// SpanName returns Istio's name of the spans of requests for a host and port.
func SpanName(host string, port uint32) string { return fmt.Sprintf("%s:%d/*", host, port) }

// tracing is the tracing configuration of HTTP connection managers.
type tracing struct {
	manager   *hcmv3.HttpConnectionManager_Tracing
	requestID *hcmv3.RequestIDExtension
}

func (t *tracing) addTo(manager *hcmv3.HttpConnectionManager) {
	if t != nil {
		manager.Tracing, manager.RequestIdExtension = t.manager, t.requestID
	}
}

func (t *tracing) same(other *tracing) bool {
	return t == nil && other == nil || t != nil && other != nil &&
		proto.Equal(t.manager, other.manager) && proto.Equal(t.requestID, other.requestID)
}

// trace adds the tracing. As in Istio, enableTracing of MeshConfig makes spans for the bootstrap's
// tracer only where neither a Telemetry nor a default provider sets tracing.
func (o *observer) trace(mode model.TelemetryMode) {
	m, spec := o.world.MeshConfig(), o.world.Tracing(o.node, mode)
	if spec == nil {
		if m.EnableTracing {
			istioTags := m.Tracing.GetEnableIstioTags()
			spec = &model.Tracing{IstioTags: istioTags == nil || istioTags.Value,
				RequestIDSampling: true}
			o.tracing = o.traced(spec, &hcmv3.HttpConnectionManager_Tracing{}, false)
		}
		return
	}
	if spec.Object != nil {
		o.Origins = append(o.Origins, spec.Object.Origin())
	}
	if spec.Provider == "" || spec.Disabled {
		return
	}
	provider := m.FindProvider(spec.Provider)
	manager, sampler, why := o.tracer(provider)
	if provider == nil {
		why = fmt.Sprintf("MeshConfig has no provider %q", spec.Provider)
	}
	if why != "" {
		o.problem(spec.Object, spec.Field+".providers", "no spans are sent to provider "+
			spec.Provider+": "+why)
		return
	}
	result := o.traced(spec, manager, sampler)
	if err := result.manager.ValidateAll(); err != nil {
		o.problem(spec.Object, spec.Field, "Envoy would refuse the tracing: "+err.Error())
		return
	}
	o.tracing = result
}

// traced returns the tracing with a tracer. If the provider has a sampler, the sampler decides
// which requests get spans, and Envoy does not.
func (o *observer) traced(spec *model.Tracing, manager *hcmv3.HttpConnectionManager_Tracing,
	sampler bool) *tracing {
	settings := o.world.MeshConfig().Tracing
	share := defaultSampling
	switch {
	case sampler:
		share = 100
	case spec.Sampling != nil:
		share = *spec.Sampling
	case settings.GetSampling() != 0:
		share = settings.GetSampling()
	}
	manager.ClientSampling, manager.OverallSampling = &typev3.Percent{Value: 100},
		&typev3.Percent{Value: 100}
	manager.RandomSampling = &typev3.Percent{Value: share}
	manager.CustomTags = o.tags(spec)
	if length := settings.GetMaxPathTagLength(); manager.MaxPathTagLength == nil && length != 0 {
		manager.MaxPathTagLength = wrapperspb.UInt32(length)
	}
	manager.NoContextPropagation = spec.NoPropagation
	return &tracing{manager: manager, requestID: &hcmv3.RequestIDExtension{
		TypedConfig: typed(&uuidv3.UuidRequestIdConfig{
			UseRequestIdForTraceSampling: wrapperspb.Bool(spec.RequestIDSampling)})}}
}

// tracer returns the tracing with a provider's tracer, and whether the provider has a sampler; why
// explains why there is none.
func (o *observer) tracer(p *mesh.Provider) (manager *hcmv3.HttpConnectionManager_Tracing,
	sampler bool, why string) {
	manager = &hcmv3.HttpConnectionManager_Tracing{}
	if o.node.Type == model.Router {
		manager.SpawnUpstreamSpan = wrapperspb.Bool(true)
	}
	var name string
	var config proto.Message
	var length uint32
	switch of := p.GetProvider().(type) {
	case *meshapi.MeshConfig_ExtensionProvider_Zipkin:
		name, length = "envoy.tracers.zipkin", of.Zipkin.GetMaxTagLength()
		config, why = o.zipkin(of.Zipkin)
	case *meshapi.MeshConfig_ExtensionProvider_Datadog:
		name, length = "envoy.tracers.datadog", of.Datadog.GetMaxTagLength()
		cluster, host, missing := o.cluster(of.Datadog.GetService(), of.Datadog.GetPort())
		config, why = &tracev3.DatadogConfig{CollectorCluster: cluster, CollectorHostname: host,
			ServiceName: o.node.Cluster}, missing
	case *meshapi.MeshConfig_ExtensionProvider_Skywalking:
		name, manager.SpawnUpstreamSpan = "envoy.tracers.skywalking", wrapperspb.Bool(true)
		cluster, host, missing := o.cluster(of.Skywalking.GetService(), of.Skywalking.GetPort())
		config, why = &tracev3.SkyWalkingConfig{GrpcService: grpcService(cluster, host)}, missing
	case *meshapi.MeshConfig_ExtensionProvider_Opentelemetry:
		name, length = "envoy.tracers.opentelemetry", of.Opentelemetry.GetMaxTagLength()
		sampler = of.Opentelemetry.GetSampling() != nil
		config, why = o.openTelemetry(of.Opentelemetry)
	default:
		return nil, false, "it is no provider of traces"
	}
	if why != "" {
		return nil, false, why
	}
	manager.Provider = &tracev3.Tracing_Http{Name: name,
		ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: typed(config)}}
	if length != 0 {
		manager.MaxPathTagLength = wrapperspb.UInt32(length)
	}
	return manager, sampler, ""
}

func (o *observer) zipkin(
	p *meshapi.MeshConfig_ExtensionProvider_ZipkinTracingProvider) (proto.Message, string) {
	cluster, host, why := o.cluster(p.GetService(), p.GetPort())
	config := &tracev3.ZipkinConfig{CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
		TraceId_128Bit: !p.GetEnable_64BitTraceId(), SharedSpanContext: wrapperspb.Bool(false),
		CollectorService: httpService("http://"+host+orElse(p.GetPath(), "/api/v2/spans"), cluster,
			bounded(p.GetTimeout()), p.GetHeaders())}
	if p.GetTraceContextOption() == meshapi.
		MeshConfig_ExtensionProvider_ZipkinTracingProvider_USE_B3_WITH_W3C_PROPAGATION {
		config.TraceContextOption = tracev3.ZipkinConfig_USE_B3_WITH_W3C_PROPAGATION
	}
	return config, why
}

func httpService(uri, cluster string, timeout *durationpb.Duration,
	headers []*meshapi.MeshConfig_ExtensionProvider_HttpHeader) *corev3.HttpService {
	service := &corev3.HttpService{HttpUri: &corev3.HttpUri{Uri: uri, Timeout: timeout,
		HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: cluster}}}
	for _, h := range sent(headers) {
		service.RequestHeadersToAdd = append(service.RequestHeadersToAdd, &corev3.HeaderValueOption{
			Header: h, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD})
	}
	return service
}

// sent returns the headers with a value in the configuration. Values from the environment are not
// supported.
func sent(headers []*meshapi.MeshConfig_ExtensionProvider_HttpHeader) []*corev3.HeaderValue {
	var all []*corev3.HeaderValue
	for _, h := range headers {
		if h.GetEnvName() == "" {
			all = append(all, &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()})
		}
	}
	return all
}

// join returns a URI from a host and a path.
func join(host, path string) string {
	uri, err := url.JoinPath(host, path)
	if err != nil { // not possible, because validation has parsed the host
		return host
	}
	return uri
}

func (o *observer) openTelemetry(
	p *meshapi.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) (proto.Message, string) {
	cluster, host, why := o.cluster(p.GetService(), p.GetPort())
	semantic := p.GetServiceAttributeEnrichment() ==
		meshapi.MeshConfig_ExtensionProvider_OTEL_SEMANTIC_CONVENTIONS
	config := &tracev3.OpenTelemetryConfig{ServiceName: o.node.Cluster}
	if semantic {
		config.ServiceName = o.serviceName()
	}
	if http := p.GetHttp(); http != nil {
		config.HttpService = httpService(join(host, http.GetPath()), cluster,
			bounded(http.GetTimeout()), http.GetHeaders())
	} else {
		config.GrpcService = unaryService(cluster, host, p.GetGrpc().GetTimeout())
		config.GrpcService.InitialMetadata = append(sent(p.GetGrpc().GetInitialMetadata()),
			config.GrpcService.InitialMetadata...)
	}
	const detectors = "envoy.tracers.opentelemetry.resource_detectors."
	detect := func(name string, detector proto.Message) {
		config.ResourceDetectors = append(config.ResourceDetectors, &corev3.TypedExtensionConfig{
			Name: detectors + name, TypedConfig: typed(detector)})
	}
	if p.GetResourceDetectors().GetEnvironment() != nil || semantic {
		detect("environment", &detectorsv3.EnvironmentResourceDetectorConfig{})
	}
	if p.GetResourceDetectors().GetDynatrace() != nil {
		detect("dynatrace", &detectorsv3.DynatraceResourceDetectorConfig{})
	}
	if sampler := p.GetDynatraceSampler(); sampler != nil && why == "" {
		config.Sampler, why = o.dynatrace(p, cluster, host)
	}
	return config, why
}

func bounded(timeout *durationpb.Duration) *durationpb.Duration {
	if timeout == nil {
		return durationpb.New(exportTimeout)
	}
	return timeout
}

// unaryService returns a gRPC service whose calls have a time-out. It also sets the time-out in a
// header, because Envoy's OpenTelemetry exporters ignore the field Timeout, which istiod sets.
// Envoy's router evaluates the header and removes it from the request.
func unaryService(cluster, host string, timeout *durationpb.Duration) *corev3.GrpcService {
	service := grpcService(cluster, host)
	service.Timeout = bounded(timeout)
	service.InitialMetadata = []*corev3.HeaderValue{{Key: timeoutHeader,
		Value: strconv.FormatInt(service.Timeout.AsDuration().Milliseconds(), 10)}}
	return service
}

// dynatrace returns the sampler that queries a Dynatrace service for the sampling rate.
func (o *observer) dynatrace(p *meshapi.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider,
	cluster, host string) (*corev3.TypedExtensionConfig, string) {
	in := p.GetDynatraceSampler()
	path, http, why := "api/v2/samplingConfiguration", p.GetHttp(), ""
	if own := in.GetHttpService(); own != nil {
		http = own.GetHttp()
		path = http.GetPath()
		cluster, host, why = o.cluster(own.GetService(), own.GetPort())
	}
	return &corev3.TypedExtensionConfig{
		Name: "envoy.tracers.opentelemetry.samplers.dynatrace",
		TypedConfig: typed(&samplersv3.DynatraceSamplerConfig{Tenant: in.GetTenant(),
			ClusterId: in.GetClusterId(), RootSpansPerMinute: in.GetRootSpansPerMinute(),
			HttpService: httpService(join(host, path), cluster, bounded(http.GetTimeout()),
				http.GetHeaders())})}, why
}

// serviceName returns the name of the proxy's service by OpenTelemetry's conventions.
func (o *observer) serviceName() string {
	for _, label := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/name"} {
		if name := o.node.Labels[label]; name != "" {
			return name
		}
	}
	if name := o.node.Metadata["WORKLOAD_NAME"]; name != "" {
		return name
	}
	if containers := o.node.Metadata["APP_CONTAINERS"]; containers != "" &&
		!strings.Contains(containers, ",") {
		return containers
	}
	return "unknown_service"
}
