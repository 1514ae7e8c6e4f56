// Package health determines whether the workload may receive traffic, with the semantics of a
// Kubernetes readiness probe, and reports each change to the control plane.
//
// Envoy is part of the workload: before it is ready for the first time, probes do not run and
// nothing is reported; later, each check fails unless it is ready. A drain makes the workload
// unhealthy at once, and so does MarkLeaving.
package health

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/lifecycle"
)

// Settings are the settings of [health], with at most one probe. Without a probe, the workload is
// healthy if the proxy is ready.
type Settings struct {
	Enabled bool
	config.Health
}

// Proxy is the proxy beside the workload.
type Proxy interface {
	// WaitReady returns "" once the proxy is ready. If ctx ends first, it returns the reason why
	// the proxy is not ready.
	WaitReady(ctx context.Context, progress func(reason string)) string
	ReadyContext(ctx context.Context) (ready bool, reason string)
	Draining() bool           // a drain was requested
	Changed() <-chan struct{} // closed when Draining may have changed
}

// Options configures a Checker.
type Options struct {
	Settings Settings
	Proxy    Proxy
	// OnChange sends a change to the control plane; reason states why the workload is unhealthy. It
	// must not block.
	OnChange func(healthy bool, reason string)
	// UnitState returns the ActiveState of a systemd unit.
	UnitState func(ctx context.Context, unit string) (string, error)
	// Exec runs a command.
	Exec       func(ctx context.Context, arguments []string) error
	Conditions *condition.Registry
	Logger     *slog.Logger
}

// State is the result of the checks.
type State string

// The states of the workload.
const (
	StateOff       State = ""        // checks are disabled
	StateUnknown   State = "unknown" // no threshold was reached yet
	StateHealthy   State = "healthy"
	StateUnhealthy State = "unhealthy"
)

// Status is the health of the workload.
type Status struct {
	State  State
	Since  time.Time
	Reason string // why the workload is unhealthy
}

// Checker checks the workload. Its methods are safe for concurrent use.
type Checker struct {
	lifecycle.Readiness
	options  Options
	restart  chan struct{} // receives a value when settings or leaving have changed
	mu       sync.Mutex
	settings Settings
	status   Status
	leaving  string // argument of MarkLeaving; "": MarkLeaving was not called
}

// conditionUnhealthy is active while the workload is unhealthy, unless somebody requested that, for
// example by a drain or a stop.
const conditionUnhealthy = "workload-unhealthy"

// New returns a Checker.
func New(options Options) *Checker {
	c := &Checker{options: options, settings: options.Settings, restart: make(chan struct{}, 1)}
	c.reset()
	return c
}

// Name returns the name of this component.
func (c *Checker) Name() string { return "health" }

// Run checks the workload until ctx ends.
func (c *Checker) Run(ctx context.Context) error {
	c.MarkReady()
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); c.poll(round) }()
		select {
		case <-c.restart:
		case <-ctx.Done():
		}
		cancel()
		<-ended
	}
	return nil
}

// Configure applies new settings. The state does not change until the new probe reaches a
// threshold.
func (c *Checker) Configure(s Settings) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reflect.DeepEqual(c.settings, s) {
		return
	}
	c.settings = s
	c.reset()
	c.again()
}

// Reasons of MarkLeaving.
const (
	ReasonStopping    = "the proxy is stopping"
	ReasonLeavingMesh = "the host leaves the mesh"
)

// MarkLeaving makes the workload unhealthy: for ReasonLeavingMesh until CancelLeaving is called,
// for ReasonStopping permanently.
func (c *Checker) MarkLeaving(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving == ReasonStopping {
		return
	}
	if c.settings.Enabled {
		c.set(StateUnhealthy, reason)
	}
	c.leaving = reason
	c.again()
}

// CancelLeaving reverts MarkLeaving(ReasonLeavingMesh): checks determine the state again.
func (c *Checker) CancelLeaving() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving != ReasonLeavingMesh {
		return
	}
	c.leaving = ""
	if c.settings.Enabled {
		c.status = Status{State: StateUnknown, Since: time.Now()}
	}
	c.again()
}

// Status returns the health of the workload.
func (c *Checker) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// reset adapts the state to new settings. Callers hold mu.
func (c *Checker) reset() {
	switch {
	case !c.settings.Enabled:
		// The control plane must not regard the workload as unhealthy when checks are disabled.
		if c.status.State == StateUnhealthy && c.leaving == "" {
			c.set(StateHealthy, "")
		}
		c.status = Status{}
	case c.status.State == StateOff:
		c.status = Status{State: StateUnknown, Since: time.Now()}
	}
}

func (c *Checker) again() {
	select {
	case c.restart <- struct{}{}:
	default:
	}
}
