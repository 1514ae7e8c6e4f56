package model

import "strings"

// Protocol is what a port speaks.
type Protocol int

// The protocols, by what they need of Envoy.
const (
	TCP   Protocol = iota // bytes; databases' protocols too
	HTTP                  // HTTP/1.1
	HTTP2                 // HTTP/2 without TLS; gRPC
	TLS                   // TLS that Envoy passes on by server name; HTTPS of a ServiceEntry
)

// IsHTTP tells whether requests are routed one by one.
func (p Protocol) IsHTTP() bool { return p == HTTP || p == HTTP2 }

// protocols are Istio's names; a name that is not here is not a protocol.
var protocols = map[string]Protocol{
	"HTTP": HTTP, "GRPC-WEB": HTTP, "HTTP2": HTTP2, "GRPC": HTTP2, "HTTPS": TLS, "TLS": TLS,
	"TCP": TCP, "MONGO": TCP, "REDIS": TCP, "MYSQL": TCP,
}

// ParseProtocol reads a port's protocol; one that is not given comes from the port's name ("http-api"), else is TCP.
func ParseProtocol(protocol, portName string) (Protocol, bool) {
	if protocol != "" {
		p, ok := protocols[strings.ToUpper(protocol)]
		return p, ok
	}
	prefix, _, _ := strings.Cut(portName, "-")
	if strings.HasPrefix(portName, "grpc-web") {
		return HTTP, true
	}
	return protocols[strings.ToUpper(prefix)], true
}
