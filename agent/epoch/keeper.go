package epoch

import (
	"context"
	"encoding/json"
	"syscall"
	"time"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
)

// Keeper owns the processes. Its methods may be called by several goroutines; the supervisor bounds
// each call by a context.
type Keeper interface {
	Processes
	Ledger
	Repair
}

// Processes starts, ends and watches them.
type Processes interface {
	// Start starts an Envoy under an ID that was never used before.
	Start(ctx context.Context, spec keeper.StartSpec) (keeper.Process, error)
	Signal(ctx context.Context, id string, signal syscall.Signal) error
	// Exits delivers each process that ended while this agent was connected, once.
	Exits() <-chan keeper.Process
	// Done is closed when the connection is lost. Whether the processes have ended with the keeper
	// is known from the next one.
	Done() <-chan struct{}
}

// Ledger is the keeper's list of processes, which survives the agent.
type Ledger interface {
	// Processes lists all that live, and those that exited and were not forgotten.
	Processes(ctx context.Context) ([]keeper.Process, error)
	// Measure is Processes with their connections, at most maxAge old. It may take long on a busy
	// machine.
	Measure(ctx context.Context, maxAge time.Duration) ([]keeper.Process, error)
	Annotate(ctx context.Context, id string, note json.RawMessage) error
	Forget(ctx context.Context, id string) error
}

// Repair are the operations that need access to Envoy's sockets or shared memory, or its user.
type Repair interface {
	// Run runs a program to its end as Envoy's user.
	Run(ctx context.Context, path string, args []string) (keeper.RunResult, error)
	// ClearInitializing clears the flag that a failed start leaves in a lineage's shared memory,
	// and reports whether it was set.
	ClearInitializing(ctx context.Context, lineage int) (bool, error)
	// Steer directs new connections of the ports that two processes share to one of them, until the
	// other ends, which closes its listeners after a time.
	Steer(ctx context.Context, from, to string, closes time.Duration) error
	// Cleanup removes sockets and shared memory of ended Envoys.
	Cleanup(ctx context.Context) error
}

// Admin is the admin interface of one epoch. An error that is a time-out (or EAGAIN: the queue of
// its socket is full) means that Envoy hangs; any other that there is no such interface (any more).
type Admin interface {
	State(ctx context.Context) (ServerState, error)
	// FailHealthcheck and OKHealthcheck are /healthcheck/fail and /healthcheck/ok.
	FailHealthcheck(ctx context.Context) error
	OKHealthcheck(ctx context.Context) error
	// DrainListeners is /drain_listeners: closes them at once, or, if graceful, when the drain time
	// is over. At once no Envoy accepts a new connection any more, even if none answers.
	DrainListeners(ctx context.Context, graceful bool) error
	Activity(ctx context.Context) (envoy.Activity, error)
	// SetLogLevels sets the level of all components, then those of some ("upstream:debug").
	SetLogLevels(ctx context.Context, level, components string) error
}

// ServerState is the state that an Envoy reports.
type ServerState struct {
	Server         string // state of /server_info, such as "LIVE" or "PRE_INITIALIZING"
	RestartEpoch   int    // --restart-epoch, or OwnAddress; counts only if Live
	WorkersStarted bool   // the gauge listener_manager.workers_started: listeners accept
}

// OwnAddress is a ServerState's RestartEpoch where no other living epoch has the admin address, so
// that only the epoch in question can answer.
const OwnAddress = -1

// Live reports whether Envoy serves. DRAINING means that /healthcheck/fail was called: Envoy still
// serves.
func (s ServerState) Live() bool {
	return (s.Server == "LIVE" || s.Server == "DRAINING") && s.WorkersStarted
}
