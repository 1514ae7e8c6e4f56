package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

const (
	// chunk is the number of services that the watcher reads before it processes health checks
	// again.
	chunk = 64
	// sweepShare bounds the share of time spent on sweeps, which read all services. The pause after
	// a sweep is sweepShare times the duration of the sweep, but at least sweepPause.
	sweepShare = 10
	sweepPause = time.Second
)

// watcher reads one datacentre. The goroutine of run owns its fields except health.
type watcher struct {
	registry   *Registry
	datacenter string // name of the datacentre; "": that of the Consul agent
	health     health
	names      chan answer[map[string][]string]
	// lists of the checks in the states critical and warning
	checks   [2]chan answer[api.HealthChecks]
	listings chan answer[api.KVPairs] // lists of the registered workloads
	accept   chan struct{}            // a signal from Registry.RemoveRetainedInputs

	listed   bool                // a list of the services' names has been received
	complete bool                // all services have been read
	services map[string]*service // listed services, by name
	// services that Consul has lost; their last known state remains in use
	missing map[string]bool
	// the last list of names omitted services that the token may not read
	filtered bool
	failing  [2]map[check]bool // checks in the states critical and warning
	urgent   map[string]bool   // services to read first
	sweep    []string          // services to read after the urgent ones, sorted
	sweepDue bool              // the catalogue has changed since the sweep began
	begun    time.Time         // start of the last sweep
	rest     time.Time         // earliest start of the next sweep
	// services to read again at the time retry; true: the last attempt failed; false: the token may
	// not read their instances
	later map[string]bool
	retry time.Time
	pause backoff.Backoff

	workloads workloads
}

// service is the last known state of a service.
type service struct {
	name   string
	tags   []string // tags of all instances, from the list of names
	index  uint64   // index of the response from which the service was read
	nodes  map[string]bool
	object *object.Object
}

// check identifies the health check of an instance; with an empty service, that of a node.
type check struct{ node, id, service string }

func newWatcher(r *Registry, datacenter string) *watcher {
	w := &watcher{registry: r, datacenter: datacenter,
		names:    make(chan answer[map[string][]string]),
		listings: make(chan answer[api.KVPairs]), accept: make(chan struct{}, 1),
		workloads: workloads{known: map[string]registered{}, lost: map[string]time.Time{}},
		services:  map[string]*service{}, missing: map[string]bool{}, urgent: map[string]bool{},
		later: map[string]bool{},
		pause: backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.2}}
	w.health.open(r.options, datacenter)
	for state := range w.checks {
		w.checks[state] = make(chan answer[api.HealthChecks])
	}
	return w
}

// run watches the datacentre until the context ends.
func (w *watcher) run(ctx context.Context) {
	var polls sync.WaitGroup
	defer polls.Wait()
	consul := w.registry.client.api
	polls.Go(func() { poll(ctx, w, ofNames, w.names, w.listNames) })
	polls.Go(func() { poll(ctx, w, ofWorkloads, w.listings, w.listWorkloads) })
	for state, name := range []string{api.HealthCritical, api.HealthWarning} {
		polls.Go(func() {
			poll(ctx, w, "health/state/"+name, w.checks[state],
				func(o *api.QueryOptions) (api.HealthChecks, *api.QueryMeta, error) {
					return consul.Health().State(name, o)
				})
		})
	}
	for ctx.Err() == nil {
		names, wait := w.next(time.Now())
		if len(names) > 0 {
			w.refresh(ctx, names)
		}
		w.await(ctx, wait)
	}
}

// listNames queries the names and tags of all services. An empty list is an error if the token may
// not read all services, because the list may be incomplete.
func (w *watcher) listNames(o *api.QueryOptions) (map[string][]string, *api.QueryMeta, error) {
	names, meta, err := w.registry.client.api.Catalog().Services(o)
	if err == nil && meta.ResultsFilteredByACLs && len(names) == 0 {
		err = errors.New("the Consul token may not read any service")
	}
	return names, meta, err
}

// await waits for one event, at most for the duration wait, and processes it. A negative wait means
// no limit.
func (w *watcher) await(ctx context.Context, wait time.Duration) {
	var due <-chan time.Time
	if wait >= 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-due:
	case names := <-w.names:
		w.list(names, time.Now())
	case checks := <-w.checks[0]:
		w.check(0, checks.value)
	case checks := <-w.checks[1]:
		w.check(1, checks.value)
	case found := <-w.listings:
		w.setWorkloads(found, time.Now())
	case <-w.accept:
		w.removeAll(w.missing)
		w.reportMissing()
	}
}

// next returns the names of the services to read now. If there are none, it returns how long to
// wait for an event.
func (w *watcher) next(now time.Time) (names []string, wait time.Duration) {
	if len(w.later) > 0 && !now.Before(w.retry) {
		for name := range w.later {
			w.urgent[name] = true
		}
		clear(w.later)
	}
	if len(w.sweep) == 0 && w.sweepDue && !now.Before(w.rest) {
		w.sweepDue, w.begun = false, now
		w.sweep = slices.Sorted(maps.Keys(w.services))
	}
	switch {
	case len(w.urgent) > 0:
		names = slices.Sorted(maps.Keys(w.urgent))
		return names[:min(chunk, len(names))], 0
	case len(w.sweep) > 0 && !w.failed():
		return w.sweep[:min(chunk, len(w.sweep))], 0
	}
	wait = w.removeLost(now)
	if retry := w.retry.Sub(now); len(w.later) > 0 && (wait < 0 || retry < wait) {
		wait = retry
	}
	if rest := w.rest.Sub(now); w.sweepDue && len(w.sweep) == 0 && (wait < 0 || rest < wait) {
		wait = rest
	}
	return nil, wait
}

// failed reports whether the last attempt to read some service failed.
func (w *watcher) failed() bool {
	return slices.Contains(slices.Collect(maps.Values(w.later)), true)
}

// list processes a list of the services' names and tags.
func (w *watcher) list(found answer[map[string][]string], now time.Time) {
	usable := maps.Clone(found.value)
	delete(usable, ownService)
	maps.DeleteFunc(usable, func(name string, _ []string) bool { return !isHost(name) })
	w.reportUnusable(found.value, len(usable))
	for name, tags := range usable {
		slices.Sort(tags)
		known := w.services[name]
		if known == nil || found.again || found.lost || w.missing[name] ||
			!slices.Equal(known.tags, tags) {
			w.urgent[name] = true
		}
		if known == nil {
			w.services[name] = &service{name: name, tags: tags}
		} else {
			known.tags = tags
		}
		delete(w.missing, name)
	}
	gone := map[string]bool{}
	for name := range w.services {
		if _, ok := usable[name]; !ok && !w.missing[name] {
			gone[name] = true
		}
	}
	// A service that is missing in the first list after an interruption, or because the token may
	// read less than before, may still exist.
	doubtful := found.again || found.filtered && !w.filtered
	w.filtered = found.filtered
	if found.lost || doubtful && w.listed && 2*len(gone) > len(w.services) {
		maps.Copy(w.missing, gone)
	} else {
		w.removeAll(gone)
	}
	w.reportMissing()
	w.sweepDue = w.sweepDue || w.listed && !found.again
	w.listed = true
	w.finish(now, nil)
}

// reportUnusable records a problem if the names of some services are no host names.
func (w *watcher) reportUnusable(all map[string][]string, usable int) {
	count, problem := len(all)-usable, ""
	if _, ok := all[ownService]; ok {
		count--
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if count > 0 && problem == "" && !isHost(name) {
			problem = fmt.Sprintf("%d services have no host, as their names have other characters "+
				"than letters, digits, - and dots: %.64q first", count, name)
		}
	}
	w.health.note(ofNames, problem)
}

// reportMissing records a problem if Consul has lost services.
func (w *watcher) reportMissing() {
	problem := ""
	if count := len(w.missing); count > 0 {
		problem = fmt.Sprintf("Consul has lost %d of %d services: their last state stays until they "+
			"are registered again; a reload removes them", count, len(w.services))
	}
	w.health.note(ofMissing, problem)
}

// removeAll removes services from the registry.
func (w *watcher) removeAll(names map[string]bool) {
	var changed []store.SourceInput
	for name := range names {
		if w.services[name].object != nil {
			changed = append(changed, store.SourceInput{Path: w.path(name)})
		}
		delete(w.services, name)
		delete(w.urgent, name)
		delete(w.later, name)
		delete(names, name)
	}
	if len(changed) > 0 {
		w.registry.deliver(changed, nil)
	}
}

// check processes a list of the checks in a state. It schedules a read of each service with a check
// that has entered or left the state.
func (w *watcher) check(state int, found api.HealthChecks) {
	now := make(map[check]bool, len(found))
	for _, c := range found {
		now[check{c.Node, c.CheckID, c.ServiceName}] = true
	}
	touch := func(c check) {
		if c.service != "" {
			if w.services[c.service] != nil {
				w.urgent[c.service] = true
			}
			return
		}
		for name, known := range w.services {
			if known.nodes[c.node] {
				w.urgent[name] = true
			}
		}
	}
	for c := range now {
		if !w.failing[state][c] {
			touch(c)
		}
	}
	for c := range w.failing[state] {
		if !now[c] {
			touch(c)
		}
	}
	w.failing[state] = now
}

// path returns the path of the input with a service's ServiceEntry.
func (w *watcher) path(name string) string {
	return w.registry.options.Name + ":" + w.qualified(name)
}

// qualified returns DATACENTRE/NAME for a service, or its name if no datacentre is configured.
func (w *watcher) qualified(name string) string {
	if w.datacenter == "" {
		return name
	}
	return w.datacenter + "/" + name
}
