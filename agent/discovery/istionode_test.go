package discovery

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery/model"
)

// TestParseNode_OfPilotAgent: a node of Istio's agent is assumed to have a mesh certificate, and
// interception unless its metadata disables it. istiod assumes the same.
func TestParseNode_OfPilotAgent(t *testing.T) {
	keys := map[string]bool{}
	for _, test := range []struct {
		name         string
		metadata     map[string]any
		interception model.Interception
		identity     bool
	}{
		{"ours", map[string]any{}, model.NoInterception, false},
		{"Istio's", map[string]any{"PILOT_SAN": []any{"istiod"}}, model.Redirect, true},
		{"without interception", map[string]any{"PILOT_SAN": []any{"istiod"},
			"INTERCEPTION_MODE": "NONE"}, model.NoInterception, true},
	} {
		metadata, err := structpb.NewStruct(test.metadata)
		if err != nil {
			t.Fatal(err)
		}
		n, err := parseNode(&corev3.Node{Metadata: metadata,
			Id: "sidecar~10.0.0.1~vm.shop~shop.svc.cluster.local"}, "default")
		if err != nil || n.Interception != test.interception || n.Identity != test.identity {
			t.Errorf("%s: %+v, %v", test.name, n, err)
		}
		if key := nodeKey(n); keys[key] {
			t.Errorf("%s shares resources with another one", test.name)
		} else {
			keys[key] = true
		}
	}
}

// TestParseNode_Addresses: a node with more than maxAddresses addresses is refused, because the
// server looks up each address after a change.
func TestParseNode_Addresses(t *testing.T) {
	for count, accepted := range map[int]bool{maxAddresses: true, maxAddresses + 1: false} {
		metadata, err := structpb.NewStruct(map[string]any{
			"INSTANCE_IPS": strings.TrimSuffix(strings.Repeat("10.0.0.2,", count), ",")})
		if err != nil {
			t.Fatal(err)
		}
		n, err := parseNode(&corev3.Node{Metadata: metadata,
			Id: "sidecar~10.0.0.1~vm.shop~shop.svc.cluster.local"}, "default")
		if (err == nil) != accepted || accepted && len(n.Addresses) != 2 {
			t.Errorf("%d addresses: %q, %v", count, n.Addresses, err)
		}
	}
}
