package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
)

// TestExplain_NamesGatewayOfOtherProxies: the explanation of a request to a port names the Gateway
// that has the port but does not select the proxy.
func TestExplain_NamesGatewayOfOtherProxies(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edge.yaml")
	write(t, file, fmt.Sprintf(edgeGateway, "edge", "")+fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	const sidecars = "; listeners: 127.0.0.1:80, 127.0.0.1:9000"
	for _, c := range []struct {
		nodeType, reason, fix string
		port                  uint32
	}{
		{"sidecar", "nothing listens on port 8080" + sidecars + "; Gateway default/edge at " +
			file +
			":1 has no effect here: this proxy is a sidecar", `set type = "router" in [node]`,
			8080},
		{"sidecar", "nothing listens on port 81" + sidecars, "add port 81 to a ServiceEntry", 81},
		{"router", "nothing listens on port 80; listeners: 0.0.0.0:8080",
			"add a server with port 80 to a Gateway", 80},
	} {
		said, err := discovery.Explain([]string{file},
			discovery.CheckOptions{NodeType: c.nodeType, Namespace: "default"},
			explain.Request{Host: "127.0.0.1", Port: c.port})
		if err != nil || !strings.HasPrefix(said.Reason, c.reason) ||
			!strings.HasPrefix(said.Fix, c.fix) {
			t.Errorf("port %d of a %s: %v: %s; %s", c.port, c.nodeType, err, said.Reason, said.Fix)
		}
	}
}
