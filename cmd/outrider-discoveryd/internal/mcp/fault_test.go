package mcp

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
)

// faulty is an incremental xDS server with one service and one policy. Its streams have the fault
// that was set when they began.
type faulty struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	fault atomic.Value // string: fault of new streams
	cut   chan struct{}
	lists map[string]*discoveryv3.Resource // by type URL
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	f := &faulty{cut: make(chan struct{}), lists: map[string]*discoveryv3.Resource{}}
	f.fault.Store("")
	for _, o := range []*object.Object{
		{Key: object.Key{Kind: object.ServiceEntry, Namespace: "shop", Name: "db"},
			Spec: service("db", "10.0.0.1").Objects[0].Spec, APIVersion: "networking.istio.io/v1"},
		{Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: "shop", Name: "closed"},
			Spec: &security.AuthorizationPolicy{}, APIVersion: "security.istio.io/v1"},
	} {
		r, err := Encode(o)
		if err != nil {
			t.Fatal(err)
		}
		f.lists[r.Type] = &discoveryv3.Resource{Name: r.Name, Resource: anyOf(t, r.EncodedAny())}
	}
	return f
}

// DeltaAggregatedResources responds to the first request for each type with the resources of that
// type.
func (f *faulty) DeltaAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	fault, _ := f.fault.Load().(string)
	if fault == "token revoked" {
		return status.Error(codes.Unauthenticated, fault)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.answer(stream, fault) }()
	select {
	case err := <-ended:
		return err
	case <-f.cut:
		return status.Error(codes.Unavailable, "cut")
	}
}

func (f *faulty) answer(
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
	fault string) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.ResponseNonce != "" {
			continue
		}
		answer := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.TypeUrl, Nonce: "1"}
		policies := strings.HasSuffix(r.TypeUrl, "/AuthorizationPolicy")
		switch list := f.lists[r.TypeUrl]; {
		case fault == "half a list" && policies:
			return status.Error(codes.Unavailable, fault)
		case fault == "empty lists" || list == nil:
		default:
			answer.Resources = []*discoveryv3.Resource{list}
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// TestSource_KeepsStateOverFaults ends the streams of a server, which then begin again with a
// fault. The source accepts no incomplete state, retains its objects, and reports the beginning and
// the end of the fault.
func TestSource_KeepsStateOverFaults(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, f)
	sourcetest.Run(t, func(ctx context.Context) error {
		return admission.ServeGRPC(ctx, server, listener)
	})
	f.fault.Store("half a list")
	s := start(t, Options{Address: listener.Addr().String()})
	reported := func(text string) {
		t.Helper()
		parts.EventuallyWithObservation(t, limit, text, func() (bool, string) {
			now := s.source.Status()
			if now.Err != nil {
				return text != "" && strings.Contains(now.Err.Error(), text), now.Err.Error()
			}
			return text == "" && now.Problem == "" || text != "" &&
				strings.Contains(now.Problem, text), now.Problem
		})
	}
	reported("half a list")
	if s.paths() != "" || s.source.Status().Synced {
		t.Errorf("half a list at the start: %s", s.paths())
	}
	f.fault.Store("")
	const all = "mcp:AuthorizationPolicy/shop/closed mcp:ServiceEntry/shop/db"
	s.awaitPaths(all)
	for _, test := range []struct {
		fault, report string
		connected     bool // the fault does not end the stream
	}{
		{"half a list", "half a list", false},
		{"token revoked", "token revoked", false},
		{"empty lists", "AuthorizationPolicy is empty", true},
	} {
		f.fault.Store(test.fault)
		f.cut <- struct{}{}
		reported(test.report)
		if s.paths() != all {
			t.Errorf("%s: %s", test.fault, s.paths())
		}
		f.fault.Store("")
		if test.connected {
			f.cut <- struct{}{}
		}
		reported("")
		if s.paths() != all {
			t.Errorf("after %s: %s", test.fault, s.paths())
		}
	}
}
