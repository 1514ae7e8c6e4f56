package kubernetes

import (
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// limit bounds each wait. It is generous, for busy machines.
const limit = 3 * time.Minute

const (
	networkingPath = "/apis/networking.istio.io/v1/namespaces/"
	slicePath      = "/apis/discovery.k8s.io/v1/namespaces/"
	corePath       = "/api/v1/namespaces/"
)

// receiver records the inputs that a source delivers.
type receiver struct{ sourcetest.Receiver }

// await waits until the input of a path contains a text.
func (r *receiver) await(t *testing.T, path, text string) {
	t.Helper()
	parts.Eventually(t, limit, path+" contains "+text, func() bool {
		return strings.Contains(r.Text(path), text)
	})
}

// startSource starts a source, which runs until the test ends.
func startSource(t *testing.T, options Options) (*Source, *receiver) {
	t.Helper()
	options.Name = "kubernetes"
	var r receiver
	s, err := NewSource(options, r.AcceptUpdate)
	if err != nil {
		t.Fatal(err)
	}
	sourcetest.Run(t, s.Run)
	return s, &r
}

func startRegistry(t *testing.T, options Options) (*Registry, *receiver) {
	t.Helper()
	options.Name, options.Domain = "kubernetes", "cluster.local"
	var r receiver
	s, err := NewRegistry(options, r.AcceptUpdate)
	if err != nil {
		t.Fatal(err)
	}
	sourcetest.Run(t, s.Run)
	return s, &r
}

func awaitSynced(t *testing.T, s source.Source) {
	t.Helper()
	parts.Eventually(t, limit, "the source is synchronised", func() bool {
		return s.Status().Synced
	})
}

// serviceEntry returns a ServiceEntry as YAML.
func serviceEntry(name, host string) string {
	return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name +
		"}\nspec: {hosts: [" + host + "], resolution: STATIC, location: MESH_INTERNAL, " +
		"ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}"
}

// namespace creates a namespace, and returns its name.
func namespace(c *cluster.Cluster, name string) string {
	c.Create("/api/v1/namespaces", "metadata: {name: "+name+"}")
	return name
}

// TestAPIServer runs the tests that share one API server.
func TestAPIServer(t *testing.T) {
	c := cluster.Start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster)
	}{
		{"source", testSource},
		{"namespaces", testNamespaces},
		{"status", testStatus},
		{"services", testServices},
		{"service changes", testServiceChanges},
		{"restart", testRestart},
		{"compaction", testCompaction},
		{"token", testToken},
		{"lease", testLease},
		{"cut lists", testCutLists},
		{"slow", testSlow},
		{"older data", testOlderData},
		{"empty", testEmpty}, // the last test, because it removes all objects
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c) })
	}
}
