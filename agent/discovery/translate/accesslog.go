package translate

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/discovery/mesh"
)

// AccessLog configures where listeners write a line for each request or connection.
type AccessLog = mesh.AccessLog

// logged says whether a filter logs requests or connections.
type logged int

const (
	ofRequests logged = iota
	ofConnections
)

// loggers returns the access loggers of a filter. The logger of failures is the last one, because
// EnvoyFilters may refer to the others by index.
func loggers(l AccessLog, what logged) ([]*accesslogv3.AccessLog, error) {
	var all []*accesslogv3.AccessLog
	if l.File != "" {
		log := &filelogv3.FileAccessLog{Path: l.File}
		format, err := l.Substitution()
		if err != nil {
			return nil, err
		}
		if format != nil {
			log.AccessLogFormat = &filelogv3.FileAccessLog_LogFormat{LogFormat: format}
		}
		all = append(all, &accesslogv3.AccessLog{Name: "envoy.access_loggers.file",
			ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typed(log)}})
	}
	if l.Failures != "" {
		all = append(all, failures(l.Failures, what))
	}
	return all, nil
}

// failureFlags are the response flags of a backend that refuses or does not answer: connection
// failure, connection termination, time-out, no healthy host.
var failureFlags = []string{"UF", "UC", "UT", "UH"}

// failureBuffer is the size in bytes of a worker's buffer for an access log service that reads
// slowly. Envoy drops and counts entries beyond it.
const failureBuffer = 4 << 10

// failures returns the access log of requests that a backend refused or did not answer. Envoy sends
// it to the access log service in a cluster.
func failures(cluster string, what logged) *accesslogv3.AccessLog {
	common := &grpclogv3.CommonGrpcAccessLogConfig{LogName: "failures",
		TransportApiVersion: corev3.ApiVersion_V3,
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster}}},
		BufferSizeBytes: wrapperspb.UInt32(failureBuffer)}
	name, config := "envoy.access_loggers.http_grpc",
		proto.Message(&grpclogv3.HttpGrpcAccessLogConfig{CommonConfig: common})
	if what == ofConnections {
		name, config = "envoy.access_loggers.tcp_grpc",
			&grpclogv3.TcpGrpcAccessLogConfig{CommonConfig: common}
	}
	return &accesslogv3.AccessLog{Name: name,
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typed(config)},
		Filter: &accesslogv3.AccessLogFilter{
			FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
				ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: failureFlags}}}}
}
