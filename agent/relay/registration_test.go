package relay

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/structpb"

	xdsresource "outrider.org/outrider/agent/resource"
)

// expect receives the next incremental request and checks its type.
func (s *testStream) expect(typeURL string) {
	s.t.Helper()
	if r := decode(s, &discoveryv3.DeltaDiscoveryRequest{}); r.TypeUrl != typeURL {
		s.t.Fatalf("%v instead of %s", r, typeURL)
	}
}

func TestRegistration_IsRenewedAfterAFailedReload(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	r := startRelay(t, serverAt(up.address), "")
	node := testNode(t)
	node.Metadata.Fields["AUTO_REGISTER_GROUP"] = structpb.NewStringValue("web")
	subscribe := func() (*testStream, *testStream) {
		t.Helper()
		envoy := r.connect(t, true, false)
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: clusterType})
		above := up.accept()
		above.expect(clusterType)
		above.send(deltaResponse("1", "a"))
		envoy.next()
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"})
		above.expect(clusterType)
		return envoy, above
	}
	old, aboveOld := subscribe()
	next, aboveNext := subscribe()
	next.end(nil)
	<-aboveNext.ended
	<-aboveOld.ended
	renewed := up.accept()
	renewed.expect(clusterType)
	if r.condition(conditionAway) != "" {
		t.Error(r.condition(conditionAway))
	}

	third, above := subscribe()
	// third opened its stream last: it remains the registered session, and old must not reconnect
	old.end(nil)
	<-renewed.ended
	third.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdsresource.ListenerType})
	above.expect(xdsresource.ListenerType)

	_, aboveLast := subscribe()
	r.EndAllButLatestStream()
	<-above.ended
	// after EndAllButLatestStream the session must not reconnect, even if Envoy sends a request
	_ = third.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType})
	select {
	case err := <-aboveLast.ended:
		t.Errorf("the stream that opened last has ended: %v", err)
	case <-up.accepted:
		t.Error("a session that leaves connects again")
	case <-time.After(2 * defaultPatience):
	}
}
