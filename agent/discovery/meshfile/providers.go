package meshfile

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/operator"
)

// providers checks extensionProviders.
func (c *checker) providers(all []*meshapi.MeshConfig_ExtensionProvider) {
	names := map[string]bool{}
	for i, p := range all {
		field := fmt.Sprintf("extensionProviders[%d]", i)
		switch {
		case p.GetName() == "":
			c.fail(field+".name", "is missing", "name the provider")
		case names[p.Name]:
			c.fail(field+".name", fmt.Sprintf("%q is given twice", p.Name), "rename one")
		}
		names[p.GetName()] = true
		if isAuthorizer(p) && p.Name != "" && !providerName.MatchString(p.Name) {
			c.fail(field+".name", fmt.Sprintf("%q is no name of an external authorizer", p.Name),
				"write up to 63 lower-case letters, digits and -, a letter or digit first and last")
		}
		c.provider(field, p)
	}
}

// provider checks the part of a provider that differs by its kind.
func (c *checker) provider(field string, p *meshapi.MeshConfig_ExtensionProvider) {
	switch of := p.GetProvider().(type) {
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc:
		c.authorizer(field+".envoyExtAuthzGrpc", of.EnvoyExtAuthzGrpc)
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp:
		c.authorizer(field+".envoyExtAuthzHttp", of.EnvoyExtAuthzHttp)
		c.httpAuthorizer(field+".envoyExtAuthzHttp", of.EnvoyExtAuthzHttp)
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		c.fileLog(field+".envoyFileAccessLog", of.EnvoyFileAccessLog)
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		c.server(field+".envoyHttpAls", of.EnvoyHttpAls)
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		c.server(field+".envoyTcpAls", of.EnvoyTcpAls)
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		c.server(field+".envoyOtelAls", of.EnvoyOtelAls)
	case *meshapi.MeshConfig_ExtensionProvider_Zipkin:
		c.server(field+".zipkin", of.Zipkin)
		c.timed(field+".zipkin", of.Zipkin)
	case *meshapi.MeshConfig_ExtensionProvider_Datadog:
		c.server(field+".datadog", of.Datadog)
	case *meshapi.MeshConfig_ExtensionProvider_Skywalking:
		c.server(field+".skywalking", of.Skywalking)
		if of.Skywalking.GetAccessToken() != "" {
			c.warn(field+".skywalking.accessToken", "has no effect: neither has it with istiod",
				"remove it")
		}
	case *meshapi.MeshConfig_ExtensionProvider_Opentelemetry:
		c.openTelemetry(field+".opentelemetry", of.Opentelemetry)
	case *meshapi.MeshConfig_ExtensionProvider_Prometheus:
	default:
		c.warn(field, "is not supported by this version of Outrider and has no effect",
			"remove it to be rid of this warning")
	}
}

// server checks the service and port of a provider.
func (c *checker) server(field string, p interface {
	GetService() string
	GetPort() uint32
}) {
	c.findings = append(c.findings, validate.ServiceName(field+".service", p.GetService())...)
	if p.GetPort() < 1 || p.GetPort() > 65535 {
		c.fail(field+".port", fmt.Sprintf("%d is not a valid port", p.GetPort()),
			"write a number from 1 to 65535")
	}
}

func (c *checker) fileLog(field string,
	p *meshapi.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider) {
	if path := p.GetPath(); path != "" && !filepath.IsAbs(path) {
		c.fail(field+".path", fmt.Sprintf("%q is not an absolute path", path),
			"write /dev/stdout or a path in /var/log/outrider")
	}
	format := p.GetLogFormat()
	c.operators(field+".logFormat.text", format.GetText())
	for _, name := range slices.Sorted(maps.Keys(format.GetLabels().GetFields())) {
		c.operators(fmt.Sprintf("%s.logFormat.labels[%q]", field, name),
			format.GetLabels().Fields[name].GetStringValue())
	}
}

// operators checks the command operators of a log format, because Envoy refuses every listener
// whose format has an unknown operator. REQ_WITHOUT_QUERY is known, because an extension provides
// it.
func (c *checker) operators(field, format string) {
	if why, fix := operator.CheckCommandOperators(format, "REQ_WITHOUT_QUERY"); why != "" {
		c.fail(field, why, fix)
	}
}

// timed checks the timeout and headers of a service that is called over HTTP.
func (c *checker) timed(field string, p interface {
	GetTimeout() *durationpb.Duration
	GetHeaders() []*meshapi.MeshConfig_ExtensionProvider_HttpHeader
}) {
	c.duration(field+".timeout", p.GetTimeout(), time.Millisecond, 0)
	c.headers(field+".headers", p.GetHeaders())
}

func (c *checker) headers(field string, all []*meshapi.MeshConfig_ExtensionProvider_HttpHeader) {
	for i, h := range all {
		at := fmt.Sprintf("%s[%d]", field, i)
		c.findings = append(c.findings, validate.Header(at, h.GetName(), h.GetValue())...)
		if h.GetEnvName() != "" {
			c.warn(at+".envName", "is not supported by this version of Outrider: the header is "+
				"not sent", "write a value")
		}
	}
}

func (c *checker) openTelemetry(field string,
	p *meshapi.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) {
	c.server(field, p)
	if p.GetHttp() != nil && p.GetGrpc() != nil {
		c.fail(field+".grpc", "is set together with http", "remove one of them")
	}
	if p.GetHttp() != nil {
		c.timed(field+".http", p.Http)
	}
	if p.GetGrpc() != nil {
		c.duration(field+".grpc.timeout", p.Grpc.Timeout, time.Millisecond, 0)
		c.headers(field+".grpc.initialMetadata", p.Grpc.InitialMetadata)
	}
	sampler := p.GetDynatraceSampler()
	if sampler == nil {
		return
	}
	switch service := sampler.HttpService; {
	case service != nil:
		c.server(field+".dynatraceSampler.httpService", service)
		if service.Http != nil {
			c.timed(field+".dynatraceSampler.httpService.http", service.Http)
		}
	case p.GetHttp() == nil:
		c.fail(field+".dynatraceSampler", "has no httpService, and the spans are not sent over HTTP",
			"write httpService, or http in opentelemetry")
	}
}

// observers checks fields other than extensionProviders on which Telemetries depend, such as
// defaultProviders.
func (c *checker) observers(m *meshapi.MeshConfig) {
	known := mesh.NewTelemetryProviders(m)
	names := func(field string, names []string) {
		for i, name := range names {
			if known.FindProvider(name) == nil {
				c.warn(fmt.Sprintf("defaultProviders.%s[%d]", field, i),
					fmt.Sprintf("there is no provider %q", name),
					"add it to extensionProviders or correct the name")
			}
		}
	}
	names("accessLogging", m.DefaultProviders.GetAccessLogging())
	names("tracing", m.DefaultProviders.GetTracing())
	names("metrics", m.DefaultProviders.GetMetrics())
	if len(m.DefaultProviders.GetTracing()) > 1 {
		c.warn("defaultProviders.tracing[1]", "only the first provider has an effect", "remove it")
	}
	tracing := m.DefaultConfig.GetTracing()
	if share := tracing.GetSampling(); !(share >= 0 && share <= 100) {
		c.fail("defaultConfig.tracing.sampling", fmt.Sprintf("%v is no percentage", share),
			"write a number from 0 to 100")
	}
	if tracing.GetTracer() != nil {
		c.warn("defaultConfig.tracing", "its tracer is the agent's and has no effect",
			"write it into outrider.toml: [tracing]")
	}
}
