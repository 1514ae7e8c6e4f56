package discovery

import (
	"maps"
	"slices"
	"sync"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// SourceUpdate is a change of the objects of one source.
type SourceUpdate = store.SourceUpdate

// accepted collects the SourceUpdates that the next push applies. Its zero value is ready for use.
type accepted struct {
	mu      sync.Mutex
	pending map[string]*pending // pending updates by source
}

// pending merges all SourceUpdates of a source since the last push.
type pending struct {
	all    bool
	inputs map[string]store.SourceInput // newest inputs in the updates, by path
}

// add merges an update into the pending ones. For each path the newest input counts.
func (a *accepted) add(b SourceUpdate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending == nil {
		a.pending = map[string]*pending{}
	}
	p := a.pending[b.Source]
	if p == nil || b.Complete {
		p = &pending{b.Complete, make(map[string]store.SourceInput, len(b.Inputs))}
		a.pending[b.Source] = p
	}
	for _, in := range b.Inputs {
		p.inputs[in.Path] = in
	}
}

// take removes and returns the pending updates.
func (a *accepted) take() []SourceUpdate {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []SourceUpdate
	for _, source := range slices.Sorted(maps.Keys(a.pending)) {
		p := a.pending[source]
		all = append(all, SourceUpdate{Source: source, Complete: p.all,
			Inputs: slices.Collect(maps.Values(p.inputs))})
	}
	a.pending = nil
	return all
}

// AcceptUpdate adds an update to the next push, which is debounced like a push of changed files. It
// never blocks. Updates accepted before Run are part of the first push. AcceptUpdate ignores an
// update whose source is not in Options.Sources.
func (s *Server) AcceptUpdate(b SourceUpdate) {
	s.accepted.add(b)
	select {
	case s.received <- struct{}{}:
	default: // the channel has a signal already
	}
}

// takeAccepted applies the pending updates to a store, and returns the changes of objects.
func (s *Server) takeAccepted(of *store.Store) []object.Change {
	batches := s.accepted.take()
	if len(batches) == 0 {
		return nil
	}
	return of.ApplyUpdates(batches)
}
