package render

import (
	"math"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/bootstrap"
)

// lightstepHeader is the metadata with the access token of Lightstep.
const lightstepHeader = "lightstep-access-token"

// tracing returns the tracing provider for listeners that enable tracing without naming a provider,
// such as those from an istiod. The field is deprecated in Envoy but works.
func (b *builder) tracing() *tracev3.Tracing {
	if b.in.Tracing == nil {
		return nil
	}
	provider := func(name string, config proto.Message) *tracev3.Tracing {
		return &tracev3.Tracing{Http: &tracev3.Tracing_Http{
			Name:       name,
			ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: b.pack(config)},
		}}
	}
	switch b.in.Tracing.Provider {
	case bootstrap.TracerZipkin:
		return provider("envoy.tracers.zipkin", &tracev3.ZipkinConfig{
			CollectorCluster:         zipkinCluster,
			CollectorEndpoint:        "/api/v2/spans",
			CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
			CollectorHostname:        b.in.Tracing.Service.Address,
			TraceId_128Bit:           true,
			SharedSpanContext:        wrapperspb.Bool(false),
		})
	case bootstrap.TracerDatadog:
		return provider("envoy.tracers.datadog", &tracev3.DatadogConfig{
			CollectorCluster:  datadogCluster,
			CollectorHostname: b.in.Tracing.Service.Address,
			ServiceName:       b.in.Node.ServiceCluster,
		})
	case bootstrap.TracerOpenTelemetry:
		return provider("envoy.tracers.opentelemetry", &tracev3.OpenTelemetryConfig{
			GrpcService: grpcService(otlpCluster),
			ServiceName: b.in.Node.ServiceCluster,
		})
	case bootstrap.TracerLightstep:
		service := grpcService(lightstepCluster)
		if b.in.Tracing.AccessToken != "" {
			service.InitialMetadata = []*corev3.HeaderValue{{Key: lightstepHeader,
				Value: b.in.Tracing.AccessToken}}
		}
		return provider("envoy.tracers.opentelemetry", &tracev3.OpenTelemetryConfig{
			GrpcService: service,
			ServiceName: b.in.Node.ServiceCluster,
		})
	}
	b.fail("tracing provider %q is none of zipkin, lightstep, datadog, opentelemetry",
		b.in.Tracing.Provider)
	return nil
}

func (b *builder) tracingCluster() *clusterv3.Cluster {
	service := &b.in.Tracing.Service
	switch b.in.Tracing.Provider {
	case bootstrap.TracerZipkin:
		return b.serviceCluster(zipkinCluster, service, false)
	case bootstrap.TracerDatadog:
		return b.serviceCluster(datadogCluster, service, false)
	case bootstrap.TracerOpenTelemetry:
		return b.serviceCluster(otlpCluster, service, true)
	case bootstrap.TracerLightstep:
		return b.serviceCluster(lightstepCluster, service, true)
	}
	return nil // the method tracing reports the error
}

// sampling returns the runtime value for the percentage of traced requests. It overrides all
// listeners.
func (b *builder) sampling() *structpb.Value {
	percent := b.in.Tracing.Sampling
	if math.IsNaN(percent) || percent < 0 || percent > 100 {
		b.fail("tracing: a sampling of %v is not from 0 to 100 percent", percent)
		return structpb.NewNullValue()
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		"numerator":   structpb.NewNumberValue(math.Round(percent * 100)),
		"denominator": structpb.NewStringValue("TEN_THOUSAND"),
	}})
}
