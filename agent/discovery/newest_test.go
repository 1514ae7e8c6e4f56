package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/model"
)

// TestProblems_GatewaysOfTheNewestProxy replaces an agent's Envoy by one of another type. Only
// problems of Gateways for the newest one are reported.
func TestProblems_GatewaysOfTheNewestProxy(t *testing.T) {
	server, _ := start(t, discovery.Options{Files: []string{meshOf(t,
		"Gateway shop/edge: {selector: {app: edge}, servers: [{port: {number: 80, name: http, "+
			"protocol: HTTP}, hosts: ['*']}]}")}})
	router := node("router", "shop", map[string]any{"app": "edge"})
	sidecar := node("sidecar", "shop", map[string]any{"app": "edge"})
	for i, c := range []struct {
		stream uint64
		node   *corev3.Node
		warns  bool
	}{
		{1, router, false},
		{2, sidecar, true},
		{1, router, true}, // the older epoch drains and still accepts resources
		{3, router, false},
	} {
		if _, err := server.Feed(c.node); err != nil {
			t.Fatal(err)
		}
		server.RecordAck(c.stream, c.node)
		warns := false
		for _, p := range server.Problems() {
			warns = warns || p.Severity == "warning" && strings.Contains(p.Message,
				"has no effect here")
		}
		if warns != c.warns {
			t.Errorf("step %d: a warning: %v, want %v: %v", i, warns, c.warns, server.Problems())
		}
	}
}

// TestProblems_OfWhatAProxyIsNow: after a reload that gives a proxy an identity, only problems of
// its new view are reported, although the draining Envoy still uses the earlier one.
func TestProblems_OfWhatAProxyIsNow(t *testing.T) {
	directory := t.TempDir()
	write(t, filepath.Join(directory, "strict.yaml"), `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  ingress:
  - port: {number: 8080, name: http, protocol: HTTP}
    bind: 0.0.0.0
    defaultEndpoint: 127.0.0.1:3000
  egress: [{hosts: ["./*"]}]
`)
	server, _ := start(t, discovery.Options{Files: []string{directory}})
	stream := uint64(0)
	follow := func(name, identity string) {
		t.Helper()
		proxy := node("sidecar", "shop", nil)
		proxy.Id = strings.Replace(proxy.GetId(), "~vm.", "~"+name+".", 1)
		proxy.Metadata.Fields[model.IdentityMetadataKey] = structpb.NewStringValue(identity)
		feed, err := server.Feed(proxy)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(feed.AddWatcher())
		stream++
		server.RecordAck(stream, proxy)
	}
	reports := func(when string, want bool) {
		t.Helper()
		if got := strings.Contains(fmt.Sprint(server.Problems()), "has no identity"); got != want {
			t.Errorf("%s: problems %v", when, server.Problems())
		}
	}
	follow("vm", "")
	reports("without", true)
	follow("vm", "true")
	reports("with one", false)
	follow("vm", "")
	reports("without again", true)
	follow("vm", "true")
	reports("with one again", false)
	server.RecordStreamEnd(stream - 1)
	reports("the drained one ended", false)
	server.RecordStreamEnd(stream)
	reports("a new epoch died, and the one before may serve", true)
	follow("vm", "true")
	reports("another new epoch", false)
	follow("other", "")
	reports("another one is without", true)
}
