package relay

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/condition"
	xdsresource "outrider.org/outrider/agent/resource"
)

func TestSubscription_ResponsesReachTheAgent(t *testing.T) {
	const tableType, healthType = "type.googleapis.com/table", "type.googleapis.com/health"
	applied := make(chan []*anypb.Any, 10)
	up := startUpstream(t, "127.0.0.1:0")
	cache := filepath.Join(t.TempDir(), "cache")
	start := func() *running {
		return startRelayWith(t, Options{Upstream: serverAt(up.address),
			Cache: OpenCache(cache,
				condition.NewRegistry()), Subscriptions: []Subscription{{tableType,
				func(resources []*anypb.Any, _ []string) error {
					if string(resources[0].Value) == "bad" {
						return errors.New("bad table")
					}
					applied <- resources
					return nil
				}}}})
	}
	r := start()
	r.ReportHealthToUpstream(healthType, &rpcstatus.Status{Code: 13, Message: "down"})
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	above := up.accept()
	above.next()
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdsresource.ListenerType})
	expect := func(typeURL, nonce, problem string) {
		t.Helper()
		got := decode(above, &discoveryv3.DeltaDiscoveryRequest{})
		if got.TypeUrl != typeURL || got.ResponseNonce != nonce ||
			got.ErrorDetail.GetMessage() != problem {
			t.Errorf("upstream received %v", got)
		}
	}
	respond := func(nonce, value string) {
		above.send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: tableType, Nonce: nonce,
			Resources: []*discoveryv3.Resource{{Name: "table",
				Resource: &anypb.Any{TypeUrl: tableType, Value: []byte(value)}}}})
	}
	expect(xdsresource.ListenerType, "", "")
	expect(tableType, "", "")
	expect(healthType, "", "down")
	respond("1", "good")
	if got := <-applied; string(got[0].Value) != "good" {
		t.Errorf("applied %v", got)
	}
	expect(tableType, "1", "")
	respond("2", "bad")
	expect(tableType, "2", "bad table")
	if r.condition(conditionRefusals) == "" {
		t.Error("the refusal is not reported")
	}
	r.ReportHealthToUpstream(healthType, nil)
	expect(healthType, "", "")

	above.end(status.Error(codes.Unavailable, "gone"))
	above = up.accept()
	expect(clusterType, "", "")
	expect(xdsresource.ListenerType, "", "")
	expect(tableType, "", "")
	expect(healthType, "", "")
	select {
	case got := <-envoy.received:
		t.Errorf("Envoy received %q", got)
	default:
	}

	up.server.Stop()
	r.stop()
	r = start()
	r.ApplyCachedResources(strings.ReplaceAll(testNode(t).Id, "default", "other"), tableType)
	select {
	case got := <-applied:
		t.Errorf("applied %v of another node", got)
	default:
	}
	r.ApplyCachedResources(strings.Replace(testNode(t).Id, "10.255.0.1", "127.0.0.1", 1), tableType)
	if got := <-applied; string(got[0].Value) != "good" {
		t.Errorf("applied %v before an Envoy", got)
	}
	envoy = r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: xdsresource.ListenerType})
	if got := <-applied; string(got[0].Value) != "good" {
		t.Errorf("applied %v from the cache", got)
	}
}
