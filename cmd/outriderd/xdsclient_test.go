package main_test

import (
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/rig"
)

// A client that runs as Envoy's user, but sends another node than that in Envoy's bootstrap, is
// refused. The status reports that. Envoy itself can connect, even after a restart of the agent.
func TestXDSSocket_RefusesInventedNodes(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	socket := filepath.Join(r.Dir, "run", "envoy", "xds.sock")
	invented := func() error {
		t.Helper()
		connection, err := grpc.NewClient("unix:"+socket,
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connection.Close() }()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
			DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node:    &corev3.Node{Id: "sidecar~10.0.0.1~vm.invented~invented.svc.cluster.local"},
			TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"})
		_, err = stream.Recv()
		return err
	}
	if err := invented(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an invented node: %v", err)
	}
	if told := r.RunOutrider("status"); !strings.Contains(told.Stdout, xds.ConditionClientRefused) &&
		!strings.Contains(told.Stdout, "clients of the xDS socket were refused") {
		t.Errorf("status: %s", told.Stdout)
	}
	before := current(t, r)
	r.KillAgent()
	r.StartReady()
	follows := follower(t, r, ", namespace: default", "")
	follows("after a restart of the agent")
	if now := current(t, r); now.PID != before.PID {
		t.Errorf("epoch %+v", now)
	}
	if err := invented(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an invented node after a restart: %v", err)
	}
}
