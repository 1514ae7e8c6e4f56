package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Command operators of Envoy 1.40's access logs: without parameter or length, with optional ones,
// and with a required parameter. A test checks them against Envoy.
const (
	operatorsAlone = `
ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS
CUSTOM_FLAGS DOWNSTREAM_CX_RTT DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT
DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_DIRECT_LOCAL_ADDRESS DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID
DOWNSTREAM_DIRECT_LOCAL_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS DOWNSTREAM_DIRECT_REMOTE_PORT
DOWNSTREAM_HANDSHAKE_DURATION DOWNSTREAM_HEADER_BYTES_RECEIVED DOWNSTREAM_HEADER_BYTES_SENT DOWNSTREAM_LOCAL_ADDRESS
DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID DOWNSTREAM_LOCAL_CLOSE_REASON DOWNSTREAM_LOCAL_DNS_SAN DOWNSTREAM_LOCAL_EMAIL_SAN
DOWNSTREAM_LOCAL_IP_SAN DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_PORT DOWNSTREAM_LOCAL_SUBJECT
DOWNSTREAM_LOCAL_URI_SAN DOWNSTREAM_PEER_CERT DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1
DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_DNS_SAN DOWNSTREAM_PEER_EMAIL_SAN
DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256 DOWNSTREAM_PEER_IP_SAN DOWNSTREAM_PEER_ISSUER
DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256 DOWNSTREAM_PEER_ISSUER_SERIAL DOWNSTREAM_PEER_OTHERNAME_SAN
DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN DOWNSTREAM_REMOTE_ADDRESS
DOWNSTREAM_REMOTE_PORT DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_GROUP DOWNSTREAM_TLS_SESSION_ID DOWNSTREAM_TLS_VERSION
DOWNSTREAM_TRANSPORT_FAILURE_REASON DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION
FILTER_CHAIN_NAME GRPC_STATUS_NUMBER HOSTNAME LISTENER_NAME LOCAL_REPLY_BODY PACKETS_RETRANSMITTED PROTOCOL
REQUEST_DURATION REQUEST_HEADERS_BYTES REQUEST_TX_DURATION RESPONSE_CODE RESPONSE_DURATION RESPONSE_FLAGS
RESPONSE_FLAGS_LONG RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES RESPONSE_TX_DURATION ROUNDTRIP_DURATION ROUTE_NAME
ROUTE_RESOLUTION_COUNT ROUTE_RESOLUTION_TIME_US SPAN_ID STREAM_ID TLS_JA3_FINGERPRINT TLS_JA4_FINGERPRINT TRACE_ID
UNIQUE_ID UPSTREAM_CLUSTER UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID UPSTREAM_CONNECTION_IDS_ATTEMPTED
UPSTREAM_CONNECTION_POOL_READY_DURATION UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED
UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT UPSTREAM_DETECTED_CLOSE_TYPE UPSTREAM_HEADER_BYTES_RECEIVED
UPSTREAM_HEADER_BYTES_SENT UPSTREAM_HOST UPSTREAM_HOSTS_ATTEMPTED UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT
UPSTREAM_HOST_NAME UPSTREAM_HOST_NAMES_ATTEMPTED UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT
UPSTREAM_HOST_NAME_WITHOUT_PORT UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_CLOSE_REASON UPSTREAM_LOCAL_DNS_SAN
UPSTREAM_LOCAL_IP_SAN UPSTREAM_LOCAL_PORT UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT UPSTREAM_PEER_DNS_SAN
UPSTREAM_PEER_IP_SAN UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL
UPSTREAM_REMOTE_ADDRESS UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID UPSTREAM_REMOTE_PORT UPSTREAM_REQUEST_ATTEMPT_COUNT
UPSTREAM_SERVER_NAME UPSTREAM_TLS_CIPHER UPSTREAM_TLS_GROUP UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION
UPSTREAM_TRANSPORT_FAILURE_REASON UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT VIRTUAL_CLUSTER_NAME`
	operatorsEither = `
DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT
DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_PEER_CERT_V_END DOWNSTREAM_PEER_CERT_V_START
DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT EMIT_TIME EMIT_TIME_LOCAL GRPC_STATUS PATH QUERY_PARAMS REQUESTED_SERVER_NAME
RESPONSE_CODE_DETAILS START_TIME START_TIME_LOCAL UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT UPSTREAM_PEER_CERT_V_END
UPSTREAM_PEER_CERT_V_START UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT`
	operatorsWith = `
CEL CLUSTER_METADATA COALESCE COMMON_DURATION DYNAMIC_METADATA ENVIRONMENT FILTER_STATE METADATA QUERY_PARAM REQ
REQUEST_HEADER RESP RESPONSE_HEADER RESPONSE_TRAILER STREAM_INFO_REQ TRAILER UPSTREAM_FILTER_STATE UPSTREAM_METADATA`
)

// operator matches a command operator: %NAME% or %NAME(parameter)%, either with :length.
var operator = regexp.MustCompile(`^%([A-Z0-9_]+)(\([^)]*\))?(:[0-9]+)?%`)

// logFormat checks a line of text with command operators, or a JSON object with such strings.
func logFormat(value any) *problem {
	line := strings.TrimSpace(value.(string))
	if !strings.HasPrefix(line, "{") {
		return operators(value.(string))
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(line), &object); err != nil {
		return problemf("write a JSON object, or a line of text that does not begin with {",
			"looks like a JSON object but is not valid: %v", err)
	}
	return operatorsIn(object)
}

// operatorsIn checks all strings in a JSON value.
func operatorsIn(value any) *problem {
	switch value := value.(type) {
	case string:
		return operators(value)
	case []any:
		for _, item := range value {
			if p := operatorsIn(item); p != nil {
				return p
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if p := operatorsIn(value[name]); p != nil {
				return p
			}
		}
	}
	return nil
}

// operators checks the command operators in a text; %% is an escaped %.
func operators(text string) *problem {
	for {
		_, rest, found := strings.Cut(text, "%")
		if !found {
			return nil
		}
		if after, escaped := strings.CutPrefix(rest, "%"); escaped {
			text = after
			continue
		}
		match := operator.FindStringSubmatch("%" + rest)
		if match == nil {
			return problemf(
				`write %OPERATOR%, %OPERATOR(PARAMETER)% or %OPERATOR(PARAMETER):LENGTH%, and %% for a %`,
				"%s begins no command operator of Envoy's", brief("%"+rest))
		}
		if p := knownOperator(match[0], match[1], match[2] != "", match[3] != ""); p != nil {
			return p
		}
		text = ("%" + rest)[len(match[0]):]
	}
}

func knownOperator(whole, name string, parameter, length bool) *problem {
	alone, either, with := strings.Fields(operatorsAlone), strings.Fields(operatorsEither),
		strings.Fields(operatorsWith)
	switch {
	case slices.Contains(alone, name) && (parameter || length):
		return problemf("write %"+name+"%",
			"%s: this operator takes no parameter and no length", whole)
	case slices.Contains(with, name) && !parameter:
		return problemf("write %"+name+"(…)%", "%s: this operator needs a parameter", whole)
	case slices.Contains(alone, name), slices.Contains(either, name), slices.Contains(with, name):
		return nil
	}
	cure := "Envoy's documentation of access logs lists them"
	if near := nearest(name, slices.Concat(alone, either, with)); near != "" {
		cure = fmt.Sprintf("did you mean %%%s%%?", near)
	}
	return problemf(cure, "%s is not a command operator of Envoy", whole)
}
