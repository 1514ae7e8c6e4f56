package consul

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// TestRegistry_FirstBatchHasAllDatacenters completes two datacentres concurrently, many times. The
// first batch must contain the services of both.
func TestRegistry_FirstBatchHasAllDatacenters(t *testing.T) {
	t.Parallel()
	for range 2000 {
		var first []store.SourceInput
		r, err := New(Options{Name: "consul", Address: "http://127.0.0.1:8500",
			Datacenters: []string{"dc1", "dc2"}, Logger: slog.New(slog.DiscardHandler),
			Sink: func(b discovery.SourceUpdate) {
				if b.Complete {
					first = b.Inputs
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		var finishing sync.WaitGroup
		for _, w := range r.watchers {
			w.listed, w.workloads.read = true, true
			finishing.Go(func() {
				w.finish(time.Now(), []store.SourceInput{{Path: w.path("web"),
					Objects: []*object.Object{{}}}})
			})
		}
		finishing.Wait()
		r.client.close()
		if len(first) != 2 {
			t.Fatalf("the first batch has %d inputs, want that of each datacentre", len(first))
		}
	}
}
