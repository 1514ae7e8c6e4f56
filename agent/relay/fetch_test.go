package relay

import (
	"log/slog"
	"path/filepath"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/condition"
	xdsresource "outrider.org/outrider/agent/resource"
)

// TestBootstrap_CachedForTheNodeWithAnotherAddress changes the node's IP address. The bootstrap
// that was cached for the earlier address is used, although the cache already has other resources
// for the new address.
func TestBootstrap_CachedForTheNodeWithAnotherAddress(t *testing.T) {
	const address = "127.0.0.1:1"
	old := &corev3.Node{Id: "sidecar~10.0.0.1~vm.ns~ns.svc.cluster.local"}
	now := &corev3.Node{Id: "sidecar~10.0.0.2~vm.ns~ns.svc.cluster.local"}
	cache := OpenCache(filepath.Join(t.TempDir(), "cache"), condition.NewRegistry())
	body, err := proto.Marshal(&anypb.Any{TypeUrl: xdsresource.BootstrapType, Value: []byte("last")})
	if err != nil {
		t.Fatal(err)
	}
	cache.put(identityOf(old, address), xdsresource.BootstrapType, "", map[string]resource{"": {body: body}})
	cache.put(identityOf(now, address), clusterType, "", held("a"))
	s := New(Options{Cache: cache, Logger: slog.New(slog.DiscardHandler)})
	var used string
	accepted, err := s.FetchBootstrap(t.Context(), serverAt(address), now, true,
		func(content []byte) error { used = string(content); return nil })
	if err != nil || used != "last" {
		t.Fatalf("%q, %v", used, err)
	}
	accepted()
	if own, _ := cache.get(identityOf(now, address), xdsresource.BootstrapType); len(own) != 1 {
		t.Errorf("the node's own: %v", own)
	}
}
