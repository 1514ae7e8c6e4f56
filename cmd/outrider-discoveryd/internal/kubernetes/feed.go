package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// handler converts objects to inputs of the discovery server. Callers hold the feed's lock.
type handler interface {
	// set processes a new or changed object of a collection. key is "namespace/name".
	set(c *collection, key string, o runtime.Object)
	// remove processes the removal of an object.
	remove(c *collection, key string)
	// input returns the input of the discovery server for a path that was passed to feed.change. ok
	// is false if the input need not be sent, because it has not changed.
	input(path string) (in store.SourceInput, ok bool)
	// count returns the number of inputs.
	count() int
}

// preparer is a handler that can process a list before set is called for its objects, without the
// feed's lock.
type preparer interface {
	prepare(c *collection, list []any)
}

// feed runs the collections of one source. It sends their changes to the sink, as inputs that the
// handler has made from the objects.
type feed struct {
	name        string
	connection  *connection
	handler     handler
	sink        source.Sink
	collections []*collection
	wake        chan struct{}

	mu       sync.Mutex
	changed  map[string]struct{} // paths of inputs to send
	complete bool                // all collections have been listed, and the first batch was made
	synced   bool                // the sink has received the first batch
}

func newFeed(name string, at *connection, h handler, sink source.Sink) feed {
	return feed{name: name, connection: at, handler: h, sink: sink, wake: make(chan struct{}, 1),
		changed: map[string]struct{}{}}
}

// Name returns the name of the feed as a source.
func (f *feed) Name() string { return f.name }

// Run runs the collections and sends their changes until ctx ends.
func (f *feed) Run(ctx context.Context) error {
	// The Reflector's log is discarded: Status reports the errors.
	ctx = klog.NewContext(ctx, logr.Discard())
	var running sync.WaitGroup
	for _, c := range f.collections {
		running.Go(func() { c.run(ctx) })
	}
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
			f.send()
		}
	}
}

// change marks the input at a path as changed. Callers hold the lock.
func (f *feed) change(path string) { f.changed[path] = struct{}{} }

// signal makes Run send the inputs of changed paths. It never blocks.
func (f *feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// send sends the inputs of changed paths. It does nothing until all collections have been listed.
func (f *feed) send() {
	f.mu.Lock()
	if slices.ContainsFunc(f.collections, func(c *collection) bool { return !c.listed }) {
		f.mu.Unlock()
		return
	}
	batch := discovery.SourceUpdate{Source: f.name, Complete: !f.complete}
	for path := range f.changed {
		if in, ok := f.handler.input(path); ok {
			batch.Inputs = append(batch.Inputs, in)
		}
	}
	clear(f.changed)
	f.complete = true
	f.mu.Unlock()
	if !batch.Complete && len(batch.Inputs) == 0 {
		return
	}
	slices.SortFunc(batch.Inputs, func(a, b store.SourceInput) int {
		return cmp.Compare(a.Path, b.Path)
	})
	f.sink(batch)
	f.mu.Lock()
	f.synced = true
	f.mu.Unlock()
}

// Status returns the state of the connection to the API server.
func (f *feed) Status() source.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	status := source.Status{Synced: f.synced, Inputs: f.handler.count()}
	var problems, missing []string
	for _, c := range f.collections {
		if c.since.After(status.LastContact) {
			status.LastContact = c.since
		}
		if status.Err == nil {
			status.Err = c.err
		}
		if c.missing && !slices.Contains(missing, c.kind) {
			missing = append(missing, c.kind)
		}
		if c.forbidden {
			problems = append(problems, fmt.Sprintf("%s must not be listed, and count as absent",
				c.kind))
		}
		if n := len(c.stale); n > 0 {
			where := ""
			if c.namespace != "" {
				where = " of namespace " + c.namespace
			}
			problems = append(problems, fmt.Sprintf("the list of kind %s%s is empty: "+
				"%d of before remain in force", c.kind, where, n))
		}
	}
	if len(missing) > 0 {
		problems = append(problems, "the API server has no definition of "+
			strings.Join(missing, ", ")+": they count as absent")
	}
	status.Problem = strings.Join(problems, "; ")
	return status
}

// RemoveRetainedInputs removes the objects that are retained although a list is empty.
func (f *feed) RemoveRetainedInputs() {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.signal()
	for _, c := range f.collections {
		for key := range c.stale {
			c.remove(key)
		}
	}
}
