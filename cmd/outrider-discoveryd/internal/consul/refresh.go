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

// read is the result of reading one service.
type read struct {
	entries []*api.ServiceEntry
	meta    *api.QueryMeta
	err     error
}

// refresh reads services and delivers the changed ones. It schedules another attempt, after a
// pause, for services that cannot be read.
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
	var changed []store.Input
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
		case len(result.entries) == 0: // the service was removed, which the list of names will show
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

// reportHidden notes a problem if there are services whose instances the token may not read.
func (w *watcher) reportHidden() {
	problem := ""
	for _, name := range slices.Sorted(maps.Keys(w.later)) {
		if failed := w.later[name]; !failed && problem == "" {
			problem = "the token may not read the instances of service " + name
		}
	}
	w.health.note(ofService, problem)
}

// finish delivers changed inputs. The datacentre is complete once all of its services, and the list of
// workloads, were read.
func (w *watcher) finish(now time.Time, changed []store.Input) {
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

// input returns the input with the service's ServiceEntry. If there is none, the input removes the
// path.
func (s *service) input(path string) store.Input {
	input := store.Input{Path: path}
	if s.object != nil {
		input.Objects = []*object.Object{s.object}
	}
	return input
}

// update replaces the service by the one that was read, and reports whether its ServiceEntry has
// changed.
func (s *service) update(next *service) bool {
	s.index, s.nodes = next.index, next.nodes
	if object.Equal(s.object, next.object) {
		return false
	}
	s.object = next.object
	return true
}
