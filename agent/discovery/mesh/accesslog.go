package mesh

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// AccessLog configures the access log of listeners and the reporting of failed requests.
type AccessLog struct {
	File   string // path of the log file; "": none
	Format string // text format, or a JSON object of texts; "": the default format
	JSON   bool   // use Istio's JSON fields if Format is empty
	// Failures is the static cluster of the service (envoy.service.accesslog.v3) that receives an
	// entry for each request or connection that failed at a backend; "": none. It does not depend
	// on File.
	Failures string
}

// Validate checks the format, and that the path is absolute.
func (l AccessLog) Validate() error {
	if l.File != "" && !filepath.IsAbs(l.File) {
		return fmt.Errorf(
			"access_log_file %q is no absolute path; write /dev/stdout or a path in "+
				"/var/log/outrider", l.File)
	}
	_, err := l.Substitution()
	return err
}

// Substitution returns the format as Envoy's message; nil is Envoy's default.
func (l AccessLog) Substitution() (*corev3.SubstitutionFormatString, error) {
	switch {
	case l.Format == "" && !l.JSON:
		return nil, nil
	case l.Format == "":
		fields := make(map[string]any, len(istioFields))
		for name, value := range istioFields {
			fields[name] = value
		}
		return jsonFormat(fields)
	case l.Format[0] != '{':
		line := l.Format
		if line[len(line)-1] != '\n' {
			line += "\n"
		}
		return &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{
				TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
					InlineString: line}}}}, nil
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(l.Format), &fields); err != nil {
		return nil, fmt.Errorf("access_log_format is no JSON object: %w", err)
	}
	return jsonFormat(fields)
}

func jsonFormat(fields map[string]any) (*corev3.SubstitutionFormatString, error) {
	object, err := structpb.NewStruct(fields)
	if err != nil {
		return nil, fmt.Errorf("access_log_format: %w", err)
	}
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{
		JsonFormat: object}}, nil
}

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
