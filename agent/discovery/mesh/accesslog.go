package mesh

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	withoutqueryv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/formatter/req_without_query/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/resource"
)

// AccessLog configures the access log of listeners and the reporting of failed requests.
type AccessLog struct {
	File   string // path of the log file; "": none
	Format string // text format, or a JSON object of texts; "": the default format
	JSON   bool   // use Istio's JSON fields if Format is empty
	// Fields is the format as JSON fields in place of Format; nil: not set
	Fields    *structpb.Struct
	OmitEmpty bool // leave out values that are empty
	Istio     bool // the default format is Istio's line, not Envoy's
	// ConfiguredOnHost reports whether the log is configured on this host. It is then written in
	// addition to the logs of Telemetries, which replace only the log of MeshConfig.
	ConfiguredOnHost bool
	// FailureLogCluster is the static cluster of the service (envoy.service.accesslog.v3) that
	// receives an entry for each request or connection that failed at a backend; "": none. It does
	// not depend on File.
	FailureLogCluster string
}

// Validate checks the format, and that the path is absolute.
func (l AccessLog) Validate() error {
	if l.File != "" && !filepath.IsAbs(l.File) {
		return fmt.Errorf(
			"access_log_file %q is not an absolute path; use /dev/stdout or a path in "+
				"/var/log/outrider", l.File)
	}
	_, err := l.Substitution()
	return err
}

// Substitution returns the format as Envoy's message; nil is Envoy's default.
func (l AccessLog) Substitution() (*corev3.SubstitutionFormatString, error) {
	fields := l.Fields
	switch {
	case l.JSON && l.Format == "" && len(fields.GetFields()) == 0:
		fields = &structpb.Struct{Fields: make(map[string]*structpb.Value, len(istioFields))}
		for name, value := range istioFields {
			fields.Fields[name] = structpb.NewStringValue(value)
		}
	case l.Format == "" && !l.JSON && l.Istio:
		l.Format = IstioFormat
	case l.Format == "" && !l.JSON:
		return nil, nil
	case fields == nil && l.Format[0] == '{':
		var err error
		if fields, err = parseFields(l.Format); err != nil {
			return nil, err
		}
	}
	format := &corev3.SubstitutionFormatString{OmitEmptyValues: l.OmitEmpty,
		Formatters: Formatters(l.Format, fields)}
	if fields != nil {
		format.Format = &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}
		return format, nil
	}
	line := l.Format
	if line[len(line)-1] != '\n' {
		line += "\n"
	}
	format.Format = &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
			InlineString: line}}}
	return format, nil
}

func parseFields(text string) (*structpb.Struct, error) {
	var values map[string]any
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("access_log_format is not a JSON object: %w", err)
	}
	fields, err := structpb.NewStruct(values)
	if err != nil {
		return nil, fmt.Errorf("access_log_format: %w", err)
	}
	return fields, nil
}

// Formatters returns the extensions of Envoy that a text format or the fields of a JSON format need.
func Formatters(text string, fields *structpb.Struct) []*corev3.TypedExtensionConfig {
	const command = "%REQ_WITHOUT_QUERY"
	needs := strings.Contains(text, command)
	for _, value := range fields.GetFields() {
		needs = needs || strings.Contains(value.GetStringValue(), command)
	}
	if !needs {
		return nil
	}
	// The message has no fields, so its encoding is empty.
	message := &withoutqueryv3.ReqWithoutQuery{}
	return []*corev3.TypedExtensionConfig{{Name: "envoy.formatter.req_without_query",
		TypedConfig: &anypb.Any{TypeUrl: resource.TypePrefix +
			string(message.ProtoReflect().Descriptor().FullName())}}}
}

// IstioFormat is the format of a line of Istio's access log.
const IstioFormat = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% " +
	"%PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% " +
	"%CONNECTION_TERMINATION_DETAILS% \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% " +
	"%BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" " +
	"\"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" " +
	"%UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% " +
	"%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n"

// istioFields are the fields of Istio's JSON access log (accessLogEncoding: JSON).
var istioFields = map[string]string{
	"start_time": "%START_TIME%", "method": "%REQ(:METHOD)%",
	"path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", "protocol": "%PROTOCOL%",
	"response_code": "%RESPONSE_CODE%", "response_flags": "%RESPONSE_FLAGS%",
	"response_code_details":          "%RESPONSE_CODE_DETAILS%",
	"connection_termination_details": "%CONNECTION_TERMINATION_DETAILS%",
	"bytes_received":                 "%BYTES_RECEIVED%", "bytes_sent": "%BYTES_SENT%",
	"duration": "%DURATION%", "upstream_service_time": "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
	"x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
	"user_agent":      "%REQ(USER-AGENT)%", "request_id": "%REQ(X-REQUEST-ID)%",
	"authority": "%REQ(:AUTHORITY)%", "upstream_host": "%UPSTREAM_HOST%",
	"upstream_cluster":          "%UPSTREAM_CLUSTER_RAW%",
	"upstream_local_address":    "%UPSTREAM_LOCAL_ADDRESS%",
	"downstream_local_address":  "%DOWNSTREAM_LOCAL_ADDRESS%",
	"downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
	"requested_server_name":     "%REQUESTED_SERVER_NAME%", "route_name": "%ROUTE_NAME%",
	"upstream_transport_failure_reason": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
}
