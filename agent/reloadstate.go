package agent

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
)

// reloadState holds the configuration in force and the state of the reloads. Only the reloader
// changes it; every component may read it.
type reloadState struct {
	started *config.Config               // with which the agent started
	binary  atomic.Pointer[envoy.Binary] // of the configuration in force; at first nil

	mu       sync.Mutex
	current  *config.Loaded // the configuration in force
	last     *api.LastReload
	reported uint64             // number of reloads whose start was published
	pending  []string           // changed keys that take effect at the next start of the agent
	phases   map[*reload]string // reloads in progress, with what each is doing
}

// newReloadState returns the state at the start of the agent.
func newReloadState(loaded *config.Loaded) *reloadState {
	return &reloadState{started: loaded.Config, current: loaded, phases: map[*reload]string{}}
}

// InForce returns the configuration in force.
func (r *reloadState) InForce() *config.Loaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// setPhase records the phase of a reload in progress.
func (r *reloadState) setPhase(request *reload, p api.Progress) {
	phase := fmt.Sprintf("reloading (%s): %s", request.reason, p.Phase)
	if !p.Until.IsZero() {
		phase += ", until " + p.Until.Format(time.TimeOnly) + " at the latest"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, inProgress := r.phases[request]; inProgress {
		r.phases[request] = phase
	}
}

// phaseOf returns the phase of a reload in progress.
func (r *reloadState) phaseOf(request *reload) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phases[request]
}

// Reported returns the number of reloads whose start was published.
func (r *reloadState) Reported() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reported
}

// Phase describes the oldest reload in progress and counts the others.
func (r *reloadState) Phase() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest *reload
	for request := range r.phases {
		if oldest == nil || request.id < oldest.id {
			oldest = request
		}
	}
	if len(r.phases) > 1 {
		return fmt.Sprintf("%s (and %d more)", r.phases[oldest], len(r.phases)-1)
	}
	return r.phases[oldest]
}

// Summary returns the last reload, the changed keys that take effect at the next start of the
// agent, and whether a published reload is in progress.
func (r *reloadState) Summary() (last *api.LastReload, pending []string, busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for request := range r.phases {
		busy = busy || !request.quiet
	}
	return r.last, r.pending, busy
}

// Pending returns the changed keys that take effect at the next start of the agent.
func (r *reloadState) Pending() []string {
	_, pending, _ := r.Summary()
	return pending
}
