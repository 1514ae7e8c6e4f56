package kubernetes

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// limit bounds every wait; it is long enough for a busy machine.
const limit = 3 * time.Minute

const (
	networkingPath = "/apis/networking.istio.io/v1/namespaces/"
	slicePath      = "/apis/discovery.k8s.io/v1/namespaces/"
	corePath       = "/api/v1/namespaces/"
)

// receiver is a sink that records what a source has delivered.
type receiver struct {
	mu      sync.Mutex
	inputs  map[string]store.Input
	batches int
	all     int // number of batches with All set
	last    discovery.Batch
}

func (r *receiver) sink(b discovery.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches++
	r.last = b
	if b.All {
		r.all++
		r.inputs = nil
	}
	if r.inputs == nil {
		r.inputs = map[string]store.Input{}
	}
	for _, in := range b.Inputs {
		if in.Text == nil && in.Objects == nil {
			delete(r.inputs, in.Path)
		} else {
			r.inputs[in.Path] = in
		}
	}
}

// count returns the number of batches delivered so far.
func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches
}

// paths returns the sorted paths of the current inputs.
func (r *receiver) paths() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.inputs))
}

func (r *receiver) input(path string) (store.Input, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in, ok := r.inputs[path]
	return in, ok
}

// await waits until the input of a path contains a text.
func (r *receiver) await(t *testing.T, path, text string) {
	t.Helper()
	parts.Eventually(t, limit, path+" contains "+text, func() bool {
		in, ok := r.input(path)
		return ok && strings.Contains(string(in.Text), text)
	})
}

// start runs a source until the test ends.
func start(t *testing.T, s source.Source) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// startSource runs a source, and waits until it has delivered its complete state.
func startSource(t *testing.T, options Options) (*Source, *receiver) {
	t.Helper()
	options.Name = "kubernetes"
	var r receiver
	s, err := NewSource(options, r.sink)
	if err != nil {
		t.Fatal(err)
	}
	start(t, s)
	return s, &r
}

func startRegistry(t *testing.T, options Options) (*Registry, *receiver) {
	t.Helper()
	options.Name, options.Domain = "kubernetes", "cluster.local"
	var r receiver
	s, err := NewRegistry(options, r.sink)
	if err != nil {
		t.Fatal(err)
	}
	start(t, s)
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

// TestAPIServer runs all tests that share one API server.
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
		{"cut lists", testCutLists},
		{"slow", testSlow},
		{"older data", testOlderData},
		{"empty", testEmpty}, // the last test, because it removes all objects
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c) })
	}
}
