// Package sourcetest helps to test implementations of source.Source.
package sourcetest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
)

// Receiver is a sink that collects the inputs of a source. The zero value is ready for use.
type Receiver struct {
	mu       sync.Mutex
	inputs   map[string]store.SourceInput
	batches  int
	complete int
	last     discovery.SourceUpdate
}

// AcceptUpdate applies a batch to the collected inputs. It is a source.Sink.
func (r *Receiver) AcceptUpdate(b discovery.SourceUpdate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches++
	r.last = b
	if b.Complete {
		r.complete++
		r.inputs = nil
	}
	if r.inputs == nil {
		r.inputs = map[string]store.SourceInput{}
	}
	for _, in := range b.Inputs {
		if in.Text == nil && len(in.Objects) == 0 {
			delete(r.inputs, in.Path)
		} else {
			r.inputs[in.Path] = in
		}
	}
}

// UpdateCount returns the number of batches delivered so far.
func (r *Receiver) UpdateCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches
}

// CompleteUpdateCount returns the number of delivered batches that had Complete set.
func (r *Receiver) CompleteUpdateCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.complete
}

// LastUpdate returns the batch that was delivered last.
func (r *Receiver) LastUpdate() discovery.SourceUpdate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Paths returns the sorted paths of the current inputs.
func (r *Receiver) Paths() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.inputs))
}

// Input returns the current input of a path.
func (r *Receiver) Input(path string) (in store.SourceInput, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in, ok = r.inputs[path]
	return in, ok
}

// Text returns the text of a path's current input, "" if there is none.
func (r *Receiver) Text(path string) string {
	in, _ := r.Input(path)
	return string(in.Text)
}

// Run calls run, and cancels its context at the end of the test or when the returned function is
// called. An error of run fails the test.
func Run(t testing.TB, run func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}
