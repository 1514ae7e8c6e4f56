package model

import (
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
)

// Protocol is the application protocol of a port.
type Protocol int

// Protocols of ports that Envoy needs different listeners for.
const (
	TCP   Protocol = iota // opaque bytes, including database protocols
	HTTP                  // HTTP/1.1
	HTTP2                 // HTTP/2 without TLS; gRPC
	TLS                   // TLS passthrough by SNI; HTTPS of a ServiceEntry
	// unspecified protocol: Envoy detects HTTP, and treats all else as TCP
	AutoProtocol
)

// IsHTTP reports whether the protocol is HTTP for certain.
func (p Protocol) IsHTTP() bool { return p == HTTP || p == HTTP2 }

// MayBeHTTP reports whether the protocol is HTTP, or may be detected as HTTP.
func (p Protocol) MayBeHTTP() bool { return p.IsHTTP() || p == AutoProtocol }

// protocols maps Istio's names of protocols, in upper case, to Protocol.
var protocols = map[string]Protocol{
	"HTTP": HTTP, "GRPC-WEB": HTTP, "HTTP2": HTTP2, "GRPC": HTTP2, "HTTPS": TLS, "TLS": TLS,
	"TCP": TCP, "MONGO": TCP, "REDIS": TCP, "MYSQL": TCP,
}

// ParseProtocol returns the protocol of a port. If none is specified, the prefix of the port's name
// ("http-api") determines it, else it is AutoProtocol.
func ParseProtocol(protocol, portName string) (Protocol, bool) {
	if protocol != "" {
		p, ok := protocols[strings.ToUpper(protocol)]
		return p, ok
	}
	if strings.HasPrefix(portName, "grpc-web") {
		return HTTP, true
	}
	prefix, _, _ := strings.Cut(portName, "-")
	if p, ok := protocols[strings.ToUpper(prefix)]; ok {
		return p, true
	}
	return AutoProtocol, true
}

// GRPCStatus returns the code of a gRPC status, for example of UNAVAILABLE.
func GRPCStatus(name string) (code uint32, ok bool) {
	var status codes.Code
	err := status.UnmarshalJSON([]byte(strconv.Quote(name)))
	return uint32(status), err == nil
}
