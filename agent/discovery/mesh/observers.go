package mesh

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshapi "istio.io/api/mesh/v1alpha1"
)

// Provider is an entry of extensionProviders.
type Provider = meshapi.MeshConfig_ExtensionProvider

// Istio's providers, which MeshConfig may redefine.
const (
	PrometheusProvider = "prometheus"
	FileLogProvider    = "envoy" // access log on standard output, in the format of MeshConfig
)

// TelemetryProviders are the parts of MeshConfig that Telemetries refer to.
type TelemetryProviders struct {
	Providers        []*Provider // Istio's own providers, then those of extensionProviders
	DefaultProviders *meshapi.MeshConfig_DefaultProviders
	// EnableTracing makes listeners report spans to the tracer of Envoy's bootstrap if neither a
	// Telemetry nor DefaultProviders selects a tracer.
	EnableTracing bool
	Tracing       *meshapi.Tracing // defaultConfig.tracing; nil: not set
	LogFormat     AccessLog        // format of FileLogProvider, without a file
}

// NewTelemetryProviders returns the telemetry providers of a MeshConfig, after Istio's own
// providers.
func NewTelemetryProviders(in *meshapi.MeshConfig) TelemetryProviders {
	o := TelemetryProviders{Providers: []*Provider{
		{Name: PrometheusProvider, Provider: &meshapi.MeshConfig_ExtensionProvider_Prometheus{
			Prometheus: &meshapi.MeshConfig_ExtensionProvider_PrometheusMetricsProvider{}}},
		{Name: FileLogProvider, Provider: &meshapi.MeshConfig_ExtensionProvider_EnvoyFileAccessLog{
			EnvoyFileAccessLog: &meshapi.
				MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider{Path: "/dev/stdout"}}}},
		DefaultProviders: in.DefaultProviders, EnableTracing: in.EnableTracing,
		Tracing: in.DefaultConfig.GetTracing(), LogFormat: AccessLog{Format: in.AccessLogFormat,
			JSON: in.AccessLogEncoding == meshapi.MeshConfig_JSON, Istio: true}}
	for _, p := range in.ExtensionProviders {
		same := func(other *Provider) bool { return other.Name == p.Name }
		if i := slices.IndexFunc(o.Providers, same); i >= 0 {
			o.Providers[i] = p
		} else {
			o.Providers = append(o.Providers, p)
		}
	}
	return o
}

// FindProvider returns the first provider with a name, compared without regard to case, or nil if
// there is none.
func (o *TelemetryProviders) FindProvider(name string) *Provider {
	for _, p := range o.Providers {
		if strings.EqualFold(p.Name, name) {
			return p
		}
	}
	return nil
}

func (o *TelemetryProviders) equal(other *TelemetryProviders) bool {
	return o.LogFormat == other.LogFormat && o.EnableTracing == other.EnableTracing &&
		proto.Equal(o.Tracing, other.Tracing) &&
		proto.Equal(o.DefaultProviders, other.DefaultProviders) &&
		slices.EqualFunc(o.Providers, other.Providers,
			func(x, y *Provider) bool { return proto.Equal(x, y) })
}
