package relay

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/scripts/parts"
)

func TestSession_PassesBytesUnchanged(t *testing.T) {
	for _, delta := range []bool{true, false} {
		up := startUpstream(t, "127.0.0.1:0")
		r := startRelay(t, serverAt(up.address), "")
		envoy := r.connect(t, delta, false)
		// The relay also forwards fields that it cannot decode.
		unknown := []byte{0xfa, 0x3e, 1, 'x'}
		var messages []proto.Message
		if delta {
			messages = []proto.Message{
				&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType},
				&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1",
					ErrorDetail: &statuspb.Status{Code: 13, Message: "no"}},
				&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"}}
		} else {
			messages = []proto.Message{
				&discoveryv3.DiscoveryRequest{Node: testNode(t), TypeUrl: clusterType},
				&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1",
					ErrorDetail: &statuspb.Status{Code: 13, Message: "no"}},
				&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"}}
		}
		var above *testStream
		for i, message := range messages {
			message.ProtoReflect().SetUnknown(unknown)
			sent := envoy.send(message)
			if i == 0 {
				above = up.accept()
			}
			got := above.next()
			// The relay may have subscribed itself after connecting, instead of forwarding Envoy's
			// first request unchanged.
			if i == 0 {
				if !proto.Equal(parse(t, got, message), withoutUnknown(message)) &&
					!bytes.Equal(got, sent) {
					t.Errorf("upstream received %q, Envoy sent %q", got, sent)
				}
				response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "1"}
				response.ProtoReflect().SetUnknown(unknown)
				if sent := above.send(response); !bytes.Equal(envoy.next(), sent) {
					t.Error("a response was changed")
				}
			} else if !bytes.Equal(got, sent) {
				t.Errorf("upstream received %q, Envoy sent %q", got, sent)
			}
		}
	}
}

func parse(t *testing.T, text []byte, like proto.Message) proto.Message {
	t.Helper()
	into := like.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
	return withoutUnknown(into)
}

func withoutUnknown(message proto.Message) proto.Message {
	message = proto.Clone(message)
	message.ProtoReflect().SetUnknown(nil)
	return message
}

func TestSession_ContinuesWithWhatEnvoyAccepted(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	r := startRelay(t, serverAt(up.address), "")
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	above := up.accept()
	above.next()
	above.send(deltaResponse("1", "a", "b"))
	envoy.next()
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"})
	above.next()
	// Envoy refuses this response, so it does not have the resource
	refused := deltaResponse("2", "c")
	refused.RemovedResources = []string{"a"}
	above.send(refused)
	envoy.next()
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "2",
		ErrorDetail: &statuspb.Status{Code: 13, Message: "no"}})
	above.next()
	// the upstream stream ends before Envoy has answered this response
	above.send(deltaResponse("3", "d"))
	envoy.next()
	above.end(status.Error(codes.Unavailable, "gone"))

	above = up.accept()
	first := decode(above, &discoveryv3.DeltaDiscoveryRequest{})
	if names := slices.Sorted(maps.Keys(first.InitialResourceVersions)); !slices.Equal(names,
		[]string{"a", "b"}) || first.ResponseNonce != "" || first.Node.GetCluster() != "test" ||
		len(first.ResourceNamesSubscribe) > 0 {
		t.Errorf("the first request on the new stream is %v", first)
	}
	// Envoy answers a response of the lost stream. The relay does not forward this answer; it
	// forwards new names in it, without the nonce.
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "3"})
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "3",
		ResourceNamesSubscribe: []string{"e"}})
	next := decode(above, &discoveryv3.DeltaDiscoveryRequest{})
	if next.ResponseNonce != "" || !slices.Equal(next.ResourceNamesSubscribe, []string{"e"}) {
		t.Errorf("the second request on the new stream is %v", next)
	}
	above.end(status.Error(codes.Unavailable, "gone"))
	above = up.accept()
	again := decode(above, &discoveryv3.DeltaDiscoveryRequest{})
	if names := slices.Sorted(maps.Keys(again.InitialResourceVersions)); !slices.Equal(names,
		[]string{"a", "b", "d"}) || !slices.Equal(again.ResourceNamesSubscribe,
		[]string{"*", "e"}) {
		t.Errorf("the first request on the third stream is %v", again)
	}
}

func TestSession_WorldSendsNewNamesOnce(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	r := startRelay(t, serverAt(up.address), "")
	envoy := r.connect(t, false, false)
	request := func(nonce, version string, names ...string) {
		envoy.send(&discoveryv3.DiscoveryRequest{Node: testNode(t), TypeUrl: endpointType,
			ResponseNonce: nonce, VersionInfo: version, ResourceNames: names})
	}
	request("", "", "a")
	above := up.accept()
	above.next()
	above.send(&discoveryv3.DiscoveryResponse{TypeUrl: endpointType, Nonce: "1", VersionInfo: "v1"})
	envoy.next()
	request("1", "v1", "a")
	above.next()
	above.end(status.Error(codes.Unavailable, "gone"))
	above = up.accept()
	first := decode(above, &discoveryv3.DiscoveryRequest{})
	if first.VersionInfo != "v1" || first.ResponseNonce != "" ||
		!slices.Equal(first.ResourceNames, []string{"a"}) {
		t.Errorf("the first request on the new stream is %v", first)
	}
	request("1", "v1", "a", "b") // Envoy's request has a nonce of the lost stream
	second := decode(above, &discoveryv3.DiscoveryRequest{})
	if second.VersionInfo != "v1" || second.ResponseNonce != "" ||
		!slices.Equal(second.ResourceNames, []string{"a", "b"}) {
		t.Errorf("the second request on the new stream is %v", second)
	}
	above.send(&discoveryv3.DiscoveryResponse{TypeUrl: endpointType, Nonce: "x", VersionInfo: "v2"})
	envoy.next()
	// the upstream server sends a response at the same time; Envoy's answer to it has all names
	request("1", "v1", "a", "b", "c")
	request("x", "v2", "a", "b", "c")
	third := decode(above, &discoveryv3.DiscoveryRequest{})
	if third.ResponseNonce != "x" || len(third.ResourceNames) != 3 {
		t.Errorf("the third request on the new stream is %v", third)
	}
}

func TestSession_DropsAnUpstreamThatDoesNotRead(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	up.slow.Store(true)
	r := startRelay(t, serverAt(up.address), "")
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	first := up.accept()
	up.slow.Store(false)
	// the relay regards an upstream server as usable only after a response
	first.send(deltaResponse("1", "a"))
	envoy.next()
	long := strings.Repeat("x", 4096)
	// 4 MB, which is more than the queues and buffers on the way to the upstream server hold
	for i := range 4 * maxRequests {
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType,
			ResourceNamesSubscribe: []string{fmt.Sprint(i, long)}})
	}
	again := &discoveryv3.DeltaDiscoveryRequest{}
	for again.TypeUrl == "" { // another link may be dropped, too, if the server reads too slowly
		above := up.accept()
		select {
		case message := <-above.received:
			if err := proto.Unmarshal(message, again); err != nil {
				t.Fatal(err)
			}
		case <-above.ended:
		}
	}
	if len(again.ResourceNamesSubscribe) < maxRequests {
		t.Errorf("%d names on the new stream", len(again.ResourceNamesSubscribe))
	}
}

func TestConfigure_MovesOpenStreams(t *testing.T) {
	before, after := startUpstream(t, "127.0.0.1:0"), startUpstream(t, "127.0.0.1:0")
	r := startRelay(t, serverAt(before.address), "")
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	above := before.accept()
	above.next()
	above.send(deltaResponse("1", "a"))
	envoy.next()
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"})
	above.next()
	next := serverAt(after.address)
	r.SetUpstreamOfNewStreams(next) // does not affect open streams
	above.send(deltaResponse("2", "b"))
	envoy.next()
	r.SetUpstream(next)
	other := after.accept()
	first := decode(other, &discoveryv3.DeltaDiscoveryRequest{})
	if len(first.InitialResourceVersions) != 1 {
		t.Errorf("the first request at the other server is %v", first)
	}
	r.SetUpstream(next) // the server is already in use, so no stream reconnects
	select {
	case <-after.accepted:
		t.Error("the stream was opened again")
	case <-time.After(200 * time.Millisecond):
	}
	r.SetUpstream(Upstream{}) // without a server, Envoy's stream remains open
	<-other.ended
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType,
		ResourceNamesSubscribe: []string{"c"}})
	if said := r.condition(conditionAway); said != "" {
		t.Errorf("condition: %s", said)
	}
	r.SetUpstream(next)
	again := decode(after.accept(), &discoveryv3.DeltaDiscoveryRequest{})
	if len(again.InitialResourceVersions) != 1 {
		t.Errorf("the first request of a stream that returns is %v", again)
	}
}

// TestRefusal_IsReportedUntilTheStreamAcceptsTheType checks that, if one of two Envoys refuses
// clusters, this is reported until the same Envoy accepts clusters, whatever the other one accepts.
func TestRefusal_IsReportedUntilTheStreamAcceptsTheType(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	r := startRelay(t, serverAt(up.address), "")
	type stream struct{ envoy, above *testStream }
	var streams []stream
	for range 2 {
		envoy := r.connect(t, true, false)
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
		above := up.accept()
		above.next()
		streams = append(streams, stream{envoy, above})
	}
	for i, step := range []struct {
		stream  int
		refusal *statuspb.Status
		reports bool
	}{{0, &statuspb.Status{Code: 13, Message: "bad cluster"}, true}, {1, nil, true}, {0, nil, false}} {
		nonce, on := fmt.Sprint(i), streams[step.stream]
		on.above.send(deltaResponse(nonce, "a"))
		on.envoy.next()
		on.envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: nonce,
			ErrorDetail: step.refusal})
		on.above.next()
		said := r.condition(conditionRefusals)
		if step.reports != strings.Contains(said, "Cluster: bad cluster") {
			t.Errorf("answer %d: condition %q", i, said)
		}
	}
}

func TestSession_UnresponsiveUpstreamIsReplacedByTheCache(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	cache := t.TempDir() + "/cache"
	r := startRelay(t, serverAt(up.address), cache)
	request := &discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType}
	envoy := r.connect(t, true, false)
	envoy.send(request)
	above := up.accept()
	above.next()
	above.send(deltaResponseWithBody("1", "a"))
	envoy.next()
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"}
	envoy.send(ack)
	above.next()

	second := r.connect(t, true, false)
	second.send(request)
	silent := up.accept()
	silent.next() // the upstream server receives the request and does not respond
	cached := decode(second, &discoveryv3.DeltaDiscoveryResponse{})
	if len(cached.Resources) != 1 || cached.Resources[0].Name != "a" {
		t.Errorf("the cache serves %v", cached)
	}
	second.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType,
		ResponseNonce: cached.Nonce})
	parts.Eventually(t, time.Minute, "a stream that starts with what the cache served",
		func() bool {
			first := decode(up.accept(), &discoveryv3.DeltaDiscoveryRequest{})
			return len(first.InitialResourceVersions) == 1
		})
}

func deltaResponseWithBody(nonce, name string) *discoveryv3.DeltaDiscoveryResponse {
	r := deltaResponse(nonce, name)
	r.Resources[0].Resource = &anypb.Any{TypeUrl: clusterType, Value: []byte("\n\x01" + name)}
	return r
}
