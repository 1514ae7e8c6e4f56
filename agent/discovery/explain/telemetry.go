package explain

import (
	"fmt"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otellogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// telemetry adds a step to the explanation, if Telemetries or MeshConfig's default providers apply:
// the destinations of logs and traces, and whether there are metrics.
func (e *explanation) telemetry(m *hcmv3.HttpConnectionManager, d *listener) {
	origins := telemetries(d)
	var facts []string
	for _, log := range m.AccessLog {
		if fact := logFact(log); fact != "" && (len(origins) > 0 || !isFileLog(log)) {
			facts = append(facts, fact)
		}
	}
	if t := m.Tracing; t != nil {
		to := "the tracer of [tracing], if there is one"
		if t.Provider != nil {
			to = strings.TrimPrefix(t.Provider.Name, "envoy.tracers.")
		}
		facts = append(facts, fmt.Sprintf("sends spans to %s, for %g %% of requests without a decision",
			to, t.GetRandomSampling().GetValue()))
	}
	if slices.ContainsFunc(m.AccessLog, func(log *accesslogv3.AccessLog) bool {
		return log.GetTypedConfig().MessageIs(&statsv3.Config{})
	}) {
		facts = append(facts, "counts requests in Istio's metrics")
	}
	if len(facts) > 0 {
		e.step("telemetry", "", origins, facts...)
	}
}

// telemetries returns the Telemetries that apply to a listener.
func telemetries(d *listener) []resource.Origin {
	return slices.DeleteFunc(slices.Clone(d.resource.Origins), func(o resource.Origin) bool {
		return o.Kind != string(object.Telemetry)
	})
}

func isFileLog(log *accesslogv3.AccessLog) bool {
	return log.GetTypedConfig().MessageIs(&filelogv3.FileAccessLog{})
}

// logFact describes an access logger that writes to a file or sends to a service. It returns "" for
// the logger that reports failures to the agent, and for loggers that only record metrics.
func logFact(log *accesslogv3.AccessLog) string {
	fact := ""
	if file, ok := unpack(log.GetTypedConfig(), &filelogv3.FileAccessLog{}); ok {
		fact = "logs requests to " + file.Path
	} else if common := commonOf(log); common != nil {
		fact = "logs requests to " + common.GetGrpcService().GetEnvoyGrpc().GetClusterName()
	}
	filter := log.GetFilter()
	if of := filter.GetExtensionFilter(); of != nil && fact != "" {
		if cel, ok := unpack(of.GetTypedConfig(), &celv3.ExpressionFilter{}); ok {
			fact += " if " + cel.Expression
		}
	}
	return fact
}

// commonOf returns the configuration of an access logger that sends to a service; nil for others.
func commonOf(log *accesslogv3.AccessLog) *grpclogv3.CommonGrpcAccessLogConfig {
	if log.GetFilter().GetResponseFlagFilter() != nil {
		return nil // the logger that reports failures to the agent
	}
	if of, ok := unpack(log.GetTypedConfig(), &grpclogv3.HttpGrpcAccessLogConfig{}); ok {
		return of.GetCommonConfig()
	}
	if of, ok := unpack(log.GetTypedConfig(), &grpclogv3.TcpGrpcAccessLogConfig{}); ok {
		return of.GetCommonConfig()
	}
	of, _ := unpack(log.GetTypedConfig(), &otellogv3.OpenTelemetryAccessLogConfig{})
	return of.GetCommonConfig() //nolint:staticcheck // deprecated; istiod's form
}
