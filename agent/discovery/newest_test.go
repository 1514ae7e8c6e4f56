package discovery_test

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/discovery"
)

// TestProblems_GatewaysOfTheNewestProxy replaces an agent's Envoy by one of another type.
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
		{1, router, true}, // the older epoch drains
		{3, router, false},
	} {
		if _, err := server.Feed(c.node); err != nil {
			t.Fatal(err)
		}
		server.Accepted(c.stream, c.node)
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
