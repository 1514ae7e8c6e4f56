package discovery_test

import (
	"path/filepath"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestViews_ShareEqualResources serves different proxies, in every order in which they can connect.
// Each gets the same resources as if it were the server's only proxy.
func TestViews_ShareEqualResources(t *testing.T) {
	at := func(region string) *corev3.Node {
		n := node("sidecar", "shop", nil)
		n.Locality = &corev3.Locality{Region: region}
		return n
	}
	service := "ServiceEntry shop/x: {hosts: [x.test], resolution: STATIC, ports: [{number: 80, " +
		"name: p, protocol: HTTP}], " +
		"endpoints: [{address: 10.0.0.1, locality: eu, labels: {version: v1}}, {address: " +
		"10.0.0.2, locality: us}]}"
	for _, test := range []struct {
		name    string
		mesh    string // text of the case's MeshConfig
		objects []string
		nodes   []*corev3.Node
	}{
		{"shares of localities for the whole mesh",
			"localityLbSetting: {distribute: [{from: eu, to: {eu: 90, us: 10}}, {from: us, to: " +
				"{us: 90, eu: 10}}]}",
			[]string{service}, []*corev3.Node{at("eu"), at("us")}},
		{"a label that one proxy has not, and one has none at all", "", []string{service,
			"DestinationRule shop/d: {host: x.test, " +
				"trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}, loadBalancer: " +
				"{localityLbSetting: {failoverPriority: [version]}}}}"},
			[]*corev3.Node{node("sidecar", "shop", nil), node("sidecar", "shop",
				map[string]any{"app": "a"})}},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := discovery.Options{Files: []string{meshOf(t, test.objects...)}}
			options.Settings.MeshConfigFile = filepath.Join(t.TempDir(), "mesh.yaml")
			write(t, options.Settings.MeshConfigFile, test.mesh)
			endpoints := func(server *discovery.Server, n *corev3.Node) string {
				feed, err := server.Feed(n)
				if err != nil {
					t.Fatal(err)
				}
				snapshot, _ := feed.Current()
				return readableResource(t, snapshot.Get(resource.Key{Type: resource.EndpointType,
					Name: "outbound|80||x.test"}))
			}
			var alone []string
			for _, n := range test.nodes {
				server, _ := start(t, options)
				alone = append(alone, endpoints(server, n))
			}
			if len(slices.Compact(slices.Clone(alone))) != len(test.nodes) {
				t.Errorf("the proxies are to differ: %s", alone)
			}
			for range 2 {
				server, _ := start(t, options)
				for i, n := range test.nodes {
					if diff := cmp.Diff(alone[i], endpoints(server, n)); diff != "" {
						t.Errorf("proxy %d, together with others (-alone +together):\n%s", i, diff)
					}
				}
				slices.Reverse(test.nodes)
				slices.Reverse(alone)
			}
		})
	}
}
