package translate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otellogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	otlpv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
)

// logged is the kind of entries that a filter logs: requests or connections.
type logged int

const (
	ofRequests logged = iota
	ofConnections
)

// Istio's names of access loggers.
const (
	fileLogName = "envoy.access_loggers.file"
	httpLogName = "envoy.access_loggers.http_grpc"
	tcpLogName  = "envoy.tcp_grpc_access_log"
	otelLogName = "envoy.access_loggers.open_telemetry"
)

// peerStates are the filter state objects of Istio's own filters. As with istiod, Envoy sends them
// to gRPC access log services whose provider names no others. Envoy omits those that do not exist.
var peerStates = []string{"upstream_peer", "downstream_peer"}

func accessLogger(name string, config proto.Message) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: name,
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typed(config)}}
}

// fileLogger returns the access logger of a file.
func fileLogger(l mesh.AccessLog) (*accesslogv3.AccessLog, error) {
	format, err := l.Substitution()
	if err != nil {
		return nil, err
	}
	log := &filelogv3.FileAccessLog{Path: l.File}
	if format != nil {
		log.AccessLogFormat = &filelogv3.FileAccessLog_LogFormat{LogFormat: format}
	}
	return accessLogger(fileLogName, log), nil
}

// accessLogger returns the access logger of a provider; why explains why there is none.
func (o *observer) accessLogger(p *mesh.Provider) (logger *accesslogv3.AccessLog, why string) {
	switch of := p.GetProvider().(type) {
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		return o.fileProvider(p.Name, of.EnvoyFileAccessLog)
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		als := of.EnvoyHttpAls
		common, why := o.common(als, orElse(als.GetLogName(), "http_envoy_accesslog"),
			als.GetFilterStateObjectsToLog())
		return accessLogger(httpLogName, &grpclogv3.HttpGrpcAccessLogConfig{CommonConfig: common,
			AdditionalRequestHeadersToLog:   als.GetAdditionalRequestHeadersToLog(),
			AdditionalResponseHeadersToLog:  als.GetAdditionalResponseHeadersToLog(),
			AdditionalResponseTrailersToLog: als.GetAdditionalResponseTrailersToLog()}), why
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		als := of.EnvoyTcpAls
		common, why := o.common(als, orElse(als.GetLogName(), "tcp_envoy_accesslog"),
			als.GetFilterStateObjectsToLog())
		return accessLogger(tcpLogName,
			&grpclogv3.TcpGrpcAccessLogConfig{CommonConfig: common}), why
	case *meshapi.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		return o.otelProvider(of.EnvoyOtelAls)
	}
	return nil, "it is no provider of access logs"
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// common returns the part of the configuration that loggers of all gRPC services share. Envoy's
// buffers are bounded: it drops and counts entries that a slow service does not read.
func (o *observer) common(p interface {
	GetService() string
	GetPort() uint32
}, name string, states []string) (*grpclogv3.CommonGrpcAccessLogConfig, string) {
	cluster, host, why := o.cluster(p.GetService(), p.GetPort())
	if len(states) == 0 {
		states = peerStates
	}
	return &grpclogv3.CommonGrpcAccessLogConfig{LogName: name,
		TransportApiVersion: corev3.ApiVersion_V3, GrpcService: grpcService(cluster, host),
		FilterStateObjectsToLog: states}, why
}

func grpcService(cluster, authority string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster, Authority: authority}}}
}

func (o *observer) fileProvider(name string,
	p *meshapi.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider) (*accesslogv3.AccessLog,
	string) {
	log := o.world.MeshConfig().LogFormat // format of MeshConfig, for Istio's own provider
	if name != mesh.FileLogProvider || p.GetLogFormat() != nil || p.GetOmitEmptyValues() {
		log = mesh.AccessLog{Format: p.GetLogFormat().GetText(), OmitEmpty: p.GetOmitEmptyValues()}
		if labels, ok := p.GetLogFormat().GetLogFormat().(*meshapi.
			MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Labels); ok {
			log.JSON, log.Fields = true, labels.Labels
		}
	}
	log.File = orElse(p.GetPath(), "/dev/stdout")
	log.Istio = true
	logger, err := fileLogger(log)
	if err != nil {
		return nil, err.Error()
	}
	return logger, ""
}

func (o *observer) otelProvider(
	p *meshapi.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider) (*accesslogv3.AccessLog,
	string) {
	body, labels := orElse(p.GetLogFormat().GetText(), mesh.IstioFormat), p.GetLogFormat().GetLabels()
	states := append(slices.Clip(peerStates), "wasm.upstream_peer", "wasm.upstream_peer_id",
		"wasm.downstream_peer", "wasm.downstream_peer_id")
	common, why := o.common(p, orElse(p.GetLogName(), "otel_envoy_accesslog"), states)
	common.GrpcService = unaryService(common.GrpcService.GetEnvoyGrpc().GetClusterName(),
		common.GrpcService.GetEnvoyGrpc().GetAuthority(), nil)
	log := &otellogv3.OpenTelemetryAccessLogConfig{
		CommonConfig:         common, //nolint:staticcheck // deprecated; istiod's form, same logs
		DisableBuiltinLabels: true,
		Body:                 &otlpv1.AnyValue{Value: &otlpv1.AnyValue_StringValue{StringValue: body}}}
	if len(labels.GetFields()) > 0 {
		log.Attributes = attributes(labels)
	}
	log.Formatters = mesh.Formatters(body, labels)
	return accessLogger(otelLogName, log), why
}

func attributes(labels *structpb.Struct) *otlpv1.KeyValueList {
	list := &otlpv1.KeyValueList{}
	for _, name := range slices.Sorted(maps.Keys(labels.Fields)) {
		list.Values = append(list.Values, &otlpv1.KeyValue{Key: name, Value: &otlpv1.AnyValue{
			Value: &otlpv1.AnyValue_StringValue{StringValue: labels.Fields[name].GetStringValue()}}})
	}
	return list
}

// failureFlags are the response flags of failed backends: connection failure, connection
// termination, time-out, no healthy host.
var failureFlags = []string{"UF", "UC", "UT", "UH"}

// failureBuffer is the size in bytes of a worker's buffer for an access log service that reads
// slowly. Envoy drops and counts entries beyond it.
const failureBuffer = 4 << 10

// failures returns the access logger of requests or connections with one of failureFlags. Envoy
// sends the entries to the access log service in a cluster.
func failures(cluster string, what logged) *accesslogv3.AccessLog {
	common := &grpclogv3.CommonGrpcAccessLogConfig{LogName: "failures",
		TransportApiVersion: corev3.ApiVersion_V3, GrpcService: grpcService(cluster, ""),
		BufferSizeBytes: wrapperspb.UInt32(failureBuffer)}
	log := accessLogger(httpLogName, &grpclogv3.HttpGrpcAccessLogConfig{CommonConfig: common})
	if what == ofConnections {
		log = accessLogger("envoy.access_loggers.tcp_grpc",
			&grpclogv3.TcpGrpcAccessLogConfig{CommonConfig: common})
	}
	log.Filter = &accesslogv3.AccessLogFilter{
		FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: failureFlags}}}
	return log
}

// ExtensionProviderCluster is the service that Envoy calls for a provider of MeshConfig.
type ExtensionProviderCluster struct{ Provider, Cluster string }

// ExtensionProviderClusters returns the services of all providers that can be used, in the order of
// MeshConfig.
func ExtensionProviderClusters(w *model.Mesh) []ExtensionProviderCluster {
	var all []ExtensionProviderCluster
	for _, p := range w.MeshConfig().Providers {
		m := p.ProtoReflect()
		kind := m.WhichOneof(m.Descriptor().Oneofs().ByName("provider"))
		if kind == nil {
			continue
		}
		of, ok := m.Get(kind).Message().Interface().(interface {
			GetService() string
			GetPort() uint32
		})
		if !ok {
			continue
		}
		if cluster, _, why := providerCluster(w, of.GetService(), of.GetPort()); why == "" {
			all = append(all, ExtensionProviderCluster{p.Name, cluster})
		}
	}
	return all
}

// providerCluster returns the cluster and the host of a provider's service, NAMESPACE/HOST or HOST;
// why explains why the service cannot be used.
func providerCluster(w *model.Mesh, service string, port uint32) (cluster, host, why string) {
	namespace, host, qualified := model.SplitHost(strings.ToLower(service))
	var found []string
	listens := false
	for _, s := range w.Services(host) {
		if !qualified || s.Namespace == namespace {
			found = append(found, s.Namespace)
			listens = s.Port(port) != nil
		}
	}
	switch {
	case len(found) == 0:
		return "", host, fmt.Sprintf("no ServiceEntry has %s, its service", service)
	case len(found) > 1:
		return "", host, fmt.Sprintf("%s, its service, is in several namespaces: %s", service,
			strings.Join(found, ", "))
	case !listens:
		return "", host, fmt.Sprintf("%s, its service, has no port %d", service, port)
	}
	return ClusterName(port, "", host), host, ""
}
