package resource_test

import (
	"bytes"
	"fmt"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/resource"
)

// metadata returns Envoy metadata whose map has the given number of keys.
func metadata(keys int) *corev3.Metadata {
	fields := map[string]*structpb.Value{}
	for i := range keys {
		fields[fmt.Sprint(i)] = structpb.NewNumberValue(float64(i))
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: fields}}}
}

// samples returns messages with maps of zero, one and many keys: directly, in lists, in a oneof,
// and as values of another map.
func samples() map[string]proto.Message {
	many := map[string]*anypb.Any{}
	for i := range 20 {
		many[fmt.Sprint(i)] = &anypb.Any{TypeUrl: "type"}
	}
	endpoint := func(keys int) *endpointv3.LbEndpoint {
		return &endpointv3.LbEndpoint{Metadata: metadata(keys),
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Hostname: "a"}}}
	}
	redirect := func(keys int) *routev3.Route {
		return &routev3.Route{Metadata: metadata(keys), Action: &routev3.Route_Redirect{
			Redirect: &routev3.RedirectAction{HostRedirect: "b"}}}
	}
	return map[string]proto.Message{
		"empty": &clusterv3.Cluster{},
		"no map": &clusterv3.Cluster{Name: "a", ConnectTimeout: durationpb.New(1),
			PerConnectionBufferLimitBytes: wrapperspb.UInt32(0)},
		"one key":           &clusterv3.Cluster{Name: "a", Metadata: metadata(1)},
		"many keys":         &clusterv3.Cluster{Name: "a", TypedExtensionProtocolOptions: many},
		"many keys, nested": &clusterv3.Cluster{Name: "a", Metadata: metadata(20)},
		"below a list": &endpointv3.ClusterLoadAssignment{
			Endpoints: []*endpointv3.LocalityLbEndpoints{
				{LbEndpoints: []*endpointv3.LbEndpoint{endpoint(1), endpoint(20)}}}},
		"beside a oneof": &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{
			{Name: "a", Routes: []*routev3.Route{redirect(0), redirect(20)}}}},
		"in a oneof": &corev3.Node{UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{
			UserAgentBuildVersion: &corev3.BuildVersion{
				Metadata: metadata(20).FilterMetadata["istio"]}}},
		"below a map of one": &structpb.Struct{Fields: map[string]*structpb.Value{
			"only": structpb.NewStructValue(metadata(20).FilterMetadata["istio"])}},
	}
}

func TestEncode_IsDeterministic(t *testing.T) {
	for name, message := range samples() {
		t.Run(name, func(t *testing.T) {
			first, err := resource.Encode(message)
			if err != nil {
				t.Fatal(err)
			}
			for range 50 {
				again, err := resource.Encode(proto.Clone(message))
				if err != nil || !bytes.Equal(again, first) {
					t.Fatalf("other bytes: %x, %v; before: %x", again, err, first)
				}
			}
			read := message.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(first, read); err != nil || !proto.Equal(read, message) {
				t.Errorf("reads as %v, %v; was %v", read, err, message)
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, name := range []string{"no map", "one key", "many keys"} {
		message := samples()[name]
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := resource.Encode(message); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
