// Package translate converts the model into Envoy resources: the clusters of a service, a virtual
// host, a route configuration, a listener. Its functions are pure; names and defaults are istiod's.
package translate

import (
	"math"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// Common numbers and addresses in Envoy's configuration.
const (
	unlimited = math.MaxUint32
	anyIPv4   = "0.0.0.0"
	anyIPv6   = "::"
	loopback  = "127.0.0.1"
)

// typed packs a message into an Any.
func typed(message proto.Message) *anypb.Any {
	return &anypb.Any{TypeUrl: resource.TypePrefix +
		string(message.ProtoReflect().Descriptor().FullName()), Value: encode(message)}
}

// encode marshals a message. It fails only for invalid UTF-8, which YAML cannot contain.
func encode(message proto.Message) []byte {
	value, err := resource.Encode(message)
	if err != nil {
		panic(err.Error())
	}
	return value
}

func adsSource(wait time.Duration) *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(wait),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

func socketAddress(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{
		SocketAddress: &corev3.SocketAddress{
			Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}}}
}

// positive returns v as an optional number for Envoy. It returns nil, Envoy's default, if v is not
// positive.
func positive(v int32) *wrapperspb.UInt32Value {
	if v <= 0 {
		return nil
	}
	return wrapperspb.UInt32(uint32(v))
}

// validated is a message of Envoy's API, which has a method Validate.
type validated interface {
	proto.Message
	Validate() error
}

// refused returns the problem that Envoy would refuse the translation of an object, because of a
// bug or a missing check.
func refused(o *object.Object, err error) object.Problem {
	return o.NewProblem(object.Finding{Severity: condition.Error,
		Message: "Envoy would refuse the result: " + err.Error(),
		Fix:     "correct the value it names"})
}
