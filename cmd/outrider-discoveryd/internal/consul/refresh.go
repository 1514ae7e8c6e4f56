package consul

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// read is the response to the query for the instances of one service.
type read struct {
	entries []*api.ServiceEntry
	meta    *api.QueryMeta
	err     error
}

// refresh reads services from Consul and delivers those that have changed. It schedules another
// attempt for services that cannot be read.
func (w *watcher) refresh(ctx context.Context, names []string) {
	results := make([]read, len(names))
	var reading sync.WaitGroup
	for i, name := range names {
		w.registry.client.readers <- struct{}{}
		reading.Go(func() {
			defer func() { <-w.registry.client.readers }()
			query := func(o *api.QueryOptions) ([]*api.ServiceEntry, *api.QueryMeta, error) {
				return w.registry.client.api.Health().Service(name, "", false, o)
			}
			results[i].entries, results[i].meta, results[i].err = send(ctx, w, 0, query)
		})
	}
	reading.Wait()
	if ctx.Err() != nil {
		return
	}
	var changed []store.SourceInput
	var failure error
	for i, name := range names {
		urgent := w.urgent[name]
		delete(w.urgent, name)
		if at, ok := slices.BinarySearch(w.sweep, name); ok {
			w.sweep = slices.Delete(w.sweep, at, at+1)
		}
		known := w.services[name]
		switch result := results[i]; {
		case known == nil, w.missing[name]:
		case result.err != nil:
			failure = result.err
			w.later[name] = true
		case len(result.entries) == 0 && result.meta.ResultsFilteredByACLs:
			w.later[name] = false
		// the service was removed; the next list of names will omit it
		case len(result.entries) == 0:
		case urgent || known.index != result.meta.LastIndex:
			if known.update(w.convert(name, result)) {
				changed = append(changed, known.input(w.path(name)))
			}
		}
	}
	w.health.record(ofService, failure)
	w.reportHidden()
	now := time.Now()
	switch {
	case len(w.later) == 0:
		w.pause.Reset()
	case !now.Before(w.retry):
		w.retry = now.Add(w.pause.Next())
	}
	w.finish(now, changed)
}

// reportHidden records a problem if the token may not read the instances of some service.
func (w *watcher) reportHidden() {
	problem := ""
	for _, name := range slices.Sorted(maps.Keys(w.later)) {
		if failed := w.later[name]; !failed && problem == "" {
			problem = "the token may not read the instances of service " + name
		}
	}
	w.health.note(ofService, problem)
}

// finish delivers changed inputs, and marks the datacentre as complete once all of its services and
// the list of registered workloads have been read.
func (w *watcher) finish(now time.Time, changed []store.SourceInput) {
	var completed *watcher
	_, workloads := w.workloads.all()
	if !w.complete && w.listed && workloads && len(w.urgent) == 0 && !w.failed() {
		w.complete, completed = true, w
	}
	if len(changed) > 0 || completed != nil {
		w.registry.deliver(changed, completed)
	}
	if len(w.sweep) == 0 && !w.begun.IsZero() {
		w.rest = now.Add(max(sweepPause, sweepShare*now.Sub(w.begun)))
		w.begun = time.Time{}
	}
}

// input returns an input of the discovery server with the ServiceEntry of the service. If the
// service has none, the input is empty, which removes an earlier ServiceEntry.
func (s *service) input(path string) store.SourceInput {
	input := store.SourceInput{Path: path}
	if s.object != nil {
		input.Objects = []*object.Object{s.object}
	}
	return input
}

// update replaces the state of the service by next, and reports whether the ServiceEntry has
// changed.
func (s *service) update(next *service) bool {
	s.index, s.nodes = next.index, next.nodes
	if object.Equal(s.object, next.object) {
		return false
	}
	s.object = next.object
	return true
}
