package consul

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
)

// lostWait is how long a WorkloadEntry is retained if it is missing after an interruption or after
// a loss of data in Consul. Servers use this time to register connected workloads again.
const lostWait = 30 * time.Second

// workloadInputs is the separator between the registry's name and NAMESPACE/NAME in the paths of
// inputs with WorkloadEntries.
const workloadInputs = ":" + string(object.WorkloadEntry) + "/"

// workloads holds the registered workloads of one datacentre. The goroutine of watcher.run owns all
// fields except those below mu.
type workloads struct {
	known map[string]registered // by NAMESPACE/NAME
	// workloads in known that Consul no longer lists, with the time at which they will be removed
	lost     map[string]time.Time
	filtered bool // Consul omits workloads that the token may not read

	mu   sync.Mutex
	read bool // a list has been received
	// listed entries; nil: the list is incomplete, because the token may not read all of them
	entries []*registration.WorkloadEntry
}

// registered is a value of the key/value store. If the value is not a valid WorkloadEntry, entry is
// nil, problem is the reason, and text is the last valid value.
type registered struct {
	index   uint64
	text    string
	entry   *registration.WorkloadEntry
	problem string
}

// listWorkloads queries all registered workloads. If the token has no read permission, it returns
// an empty list and no error, because not every server registers workloads; it then waits as a
// blocking query does. The first query requires consistency: a new leader may not have applied its
// log yet.
func (w *watcher) listWorkloads(o *api.QueryOptions) (api.KVPairs, *api.QueryMeta, error) {
	o.RequireConsistent = o.WaitIndex == 0
	pairs, meta, err := w.registry.client.api.KV().List(workloadKeys, o)
	var refused api.StatusError
	if !errors.As(err, &refused) || refused.Code != http.StatusForbidden {
		return pairs, meta, err
	}
	if err = nil; o.WaitIndex > 0 {
		err = backoff.Sleep(o.Context(), o.WaitTime)
	}
	return nil, &api.QueryMeta{LastIndex: max(o.WaitIndex, 1), KnownLeader: true}, err
}

// setWorkloads processes a list of the registered workloads. Workloads that are missing after an
// interruption or a loss of data are removed after lostWait. Workloads that the token may no longer
// read remain until the token may read them.
func (w *watcher) setWorkloads(found answer[api.KVPairs], now time.Time) {
	var changed []store.SourceInput
	entries := make([]*registration.WorkloadEntry, 0, len(found.value))
	gone := maps.Clone(w.workloads.known)
	problem := ""
	if w.workloads.filtered = found.filtered; found.filtered {
		problem = "the token may not read all registered workloads; permit read for key_prefix " +
			workloadKeys
	}
	for _, pair := range found.value {
		key := strings.TrimPrefix(pair.Key, workloadKeys)
		next, known := w.workloads.known[key]
		if !known || next.index != pair.ModifyIndex || w.workloads.isLost(key) {
			before := next.text
			next = readRegistered(pair, before)
			if w.workloads.known[key] = next; next.text != before {
				changed = append(changed, store.SourceInput{Path: w.workloadPath(key),
					Text: []byte(next.text)})
			}
		}
		if problem == "" {
			problem = next.problem
		}
		if next.entry != nil {
			entries = append(entries, next.entry)
		}
		delete(gone, key)
		delete(w.workloads.lost, key)
	}
	for key := range gone {
		switch {
		case w.workloads.isLost(key):
		case found.again || found.lost || found.filtered:
			w.workloads.lost[key] = now.Add(lostWait)
		default:
			changed = append(changed, w.removeWorkload(key))
		}
	}
	if found.filtered {
		entries = nil
	}
	w.workloads.mu.Lock()
	w.workloads.read, w.workloads.entries = true, entries
	w.workloads.mu.Unlock()
	w.health.note(ofWorkloads, problem)
	w.finish(now, changed)
}

// readRegistered parses a value of the key/value store. last is the last valid value of its key; ""
// if there is none.
func readRegistered(pair *api.KVPair, last string) registered {
	next := registered{index: pair.ModifyIndex, text: last}
	one, err := parseWorkload(pair)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(one); err == nil {
			next.text, next.entry = string(text), one.entry(pair.ModifyIndex)
		}
	}
	if err != nil {
		next.problem = fmt.Sprintf("%s: %.200v", pair.Key, err)
		if last != "" {
			next.problem += ": its last version stays"
		}
	}
	return next
}

func (w *workloads) isLost(key string) bool { _, ok := w.lost[key]; return ok }

// all returns the registered workloads, nil if the list is incomplete, and whether a list has been
// received.
func (w *workloads) all() (entries []*registration.WorkloadEntry, read bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.entries, w.read
}

// removeLost removes the workloads that have been missing for lostWait. It returns the time until
// the next removal; negative if there is none.
func (w *watcher) removeLost(now time.Time) time.Duration {
	wait := time.Duration(-1)
	if w.workloads.filtered {
		return wait
	}
	var changed []store.SourceInput
	for _, key := range slices.Sorted(maps.Keys(w.workloads.lost)) {
		switch left := w.workloads.lost[key].Sub(now); {
		case left <= 0:
			delete(w.workloads.lost, key)
			changed = append(changed, w.removeWorkload(key))
		case wait < 0 || left < wait:
			wait = left
		}
	}
	if len(changed) > 0 {
		w.registry.deliver(changed, nil)
	}
	return wait
}

func (w *watcher) removeWorkload(key string) store.SourceInput {
	delete(w.workloads.known, key)
	return store.SourceInput{Path: w.workloadPath(key)}
}

// workloadPath returns the path of the input with a workload's WorkloadEntry.
func (w *watcher) workloadPath(key string) string {
	return w.registry.options.Name + workloadInputs + w.qualified(key)
}
