package xds

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of fields: node in the requests of both kinds, and extensions in envoy.config.core.v3.Node.
const (
	deltaNodeField  = 1
	stateNodeField  = 2
	extensionsField = 9
)

// nodeField is the number of a request's field node; 0 = it is no request.
func nodeField(message any) protowire.Number {
	switch message.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		return deltaNodeField
	case *discoveryv3.DiscoveryRequest:
		return stateNodeField
	}
	return 0
}

// withoutExtensions is an encoded request without what its Envoy tells of its extensions: some 600 messages that nobody reads, decoded
// while Envoy waits for its first answer, and kept as long as its stream. What is not well formed stays as it is, for the decoder to
// say what is wrong with it.
func withoutExtensions(request []byte, node protowire.Number) []byte {
	for at := 0; at < len(request); {
		number, kind, length := protowire.ConsumeField(request[at:])
		if length < 0 {
			return request
		}
		if number == node && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(request[at:])
			value, _ := protowire.ConsumeBytes(request[at+tag:])
			short := protowire.AppendBytes(protowire.AppendTag(nil, number, kind), without(value, extensionsField))
			return slices.Concat(request[:at], short, request[at+length:])
		}
		at += length
	}
	return request
}

// without is an encoded message without a field that is a message; it stays as it is if it is not well formed.
func without(message []byte, field protowire.Number) []byte {
	var kept []byte
	for at := 0; at < len(message); {
		number, kind, length := protowire.ConsumeField(message[at:])
		if length < 0 {
			return message
		}
		if number != field || kind != protowire.BytesType {
			kept = append(kept, message[at:at+length]...)
		}
		at += length
	}
	return kept
}
