package relay

import (
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/condition"
	xdsresource "outrider.org/outrider/agent/resource"
)

// TestSession_PassesOnlyTypesOfItsClient checks that clients cannot request types that istiod would
// send only because the relay uses the identity of this host, such as the configuration of other
// proxies. Applications cannot request secrets either.
func TestSession_PassesOnlyTypesOfItsClient(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	var isEnvoy atomic.Bool
	r := startRelayWith(t, Options{Upstream: serverAt(up.address),
		IsEnvoy: func(net.Addr) bool { return isEnvoy.Load() }})
	for _, test := range []struct {
		typeURL              string
		ofEnvoy, application bool
	}{
		{debugType, false, false},
		{xdsresource.BootstrapType, false, false},
		{"istio.io/connections", false, false},
		{"networking.istio.io/v1/ServiceEntry", false, false},
		{"type.googleapis.com/istio.networking.nds.v1.NameTable", false, false},
		{xdsresource.SecretType, true, false},
		{xdsresource.ExtensionType, true, false},
		{clusterType, true, true},
		{xdsresource.ListenerType, true, true},
	} {
		for _, envoy := range []bool{true, false} {
			isEnvoy.Store(envoy)
			passes := test.application || envoy && test.ofEnvoy
			c := r.connect(t, false, false)
			c.send(&discoveryv3.DiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
			above := up.accept()
			above.next()
			c.send(&discoveryv3.DiscoveryRequest{TypeUrl: test.typeURL,
				ResourceNames: []string{"config_dump?proxyID=other.ns"}})
			if passes {
				above.next()
				c.end(nil)
				continue
			}
			select {
			case err := <-c.ended:
				if status.Code(err) != codes.PermissionDenied {
					t.Errorf("%s, Envoy %t: %v", test.typeURL, envoy, err)
				}
			case <-time.After(20 * time.Second):
				t.Errorf("%s, Envoy %t: not refused", test.typeURL, envoy)
			}
			if len(above.received) > 0 {
				t.Errorf("%s, Envoy %t: it was passed on", test.typeURL, envoy)
			}
		}
	}
}

// TestSession_NodeOfApplications checks that an application gets the node of the agent's bootstrap
// for applications, whatever node it sends. Without such a bootstrap its resources are not cached,
// and the agent sends no subscriptions on its stream.
func TestSession_NodeOfApplications(t *testing.T) {
	for _, known := range []bool{true, false} {
		for _, delta := range []bool{true, false} {
			up := startUpstream(t, "127.0.0.1:0")
			options := Options{Upstream: serverAt(up.address),
				Conditions: condition.NewRegistry(), IsEnvoy: func(net.Addr) bool { return false },
				Subscriptions: []Subscription{{TypeURL: "own",
					Apply: func([]*anypb.Any, []string) error { return nil }}}}
			options.Cache = OpenCache(filepath.Join(t.TempDir(), "cache"), options.Conditions)
			if known {
				options.ApplicationNode = func() *corev3.Node { return testNode(t) }
			}
			r := startRelayWith(t, options)
			invented := testNode(t)
			invented.Metadata.Fields["NAMESPACE"] = structpb.NewStringValue("other")
			invented.UserAgentName = "grpc"
			c := r.connect(t, delta, false)
			var request proto.Message = &discoveryv3.DiscoveryRequest{Node: invented,
				TypeUrl: xdsresource.ListenerType}
			if delta {
				request = &discoveryv3.DeltaDiscoveryRequest{Node: invented, TypeUrl: xdsresource.ListenerType}
			}
			c.send(request)
			above, types := up.accept(), map[string]bool{}
			var got *corev3.Node
			receive := func() {
				message := &discoveryv3.DeltaDiscoveryRequest{}
				if delta {
					decode(above, message)
				} else {
					world := decode(above, &discoveryv3.DiscoveryRequest{})
					message.Node, message.TypeUrl = world.Node, world.TypeUrl
				}
				types[message.TypeUrl] = true
				if message.Node == nil {
					return
				}
				got = message.Node
				namespace := got.Metadata.Fields["NAMESPACE"].GetStringValue()
				if known != (namespace == "default") || got.UserAgentName != "grpc" {
					t.Errorf("known %t, incremental %t: namespace %s", known, delta, namespace)
				}
			}
			receive()
			if known {
				receive() // the request for the agent's own subscription
			}
			c.send(request) // a later request on the stream, with the application's node again
			receive()
			if got == nil || types["own"] != known {
				t.Errorf("known %t, incremental %t: types %v", known, delta, types)
			}
			c.end(nil)
		}
	}
}
