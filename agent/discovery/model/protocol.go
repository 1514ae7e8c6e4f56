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
	Auto                  // not said: what the first bytes look like, HTTP or TCP
)

// IsHTTP tells whether requests are routed one by one.
func (p Protocol) IsHTTP() bool { return p == HTTP || p == HTTP2 }

// MayBeHTTP tells whether requests may come to a port of the protocol.
func (p Protocol) MayBeHTTP() bool { return p.IsHTTP() || p == Auto }

// protocols are Istio's names; a name that is not here is not a protocol.
var protocols = map[string]Protocol{
	"HTTP": HTTP, "GRPC-WEB": HTTP, "HTTP2": HTTP2, "GRPC": HTTP2, "HTTPS": TLS, "TLS": TLS,
	"TCP": TCP, "MONGO": TCP, "REDIS": TCP, "MYSQL": TCP,
}

// ParseProtocol reads a port's protocol; one that is not given comes from the port's name
// ("http-api"), else is found out from what is sent.
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
	return Auto, true
}
