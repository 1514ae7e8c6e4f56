package epoch

import (
	"context"
	"encoding/json"
	"net/netip"
	"syscall"
	"time"

	"outrider.org/outrider/agent/envoy"
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
	// Start starts an Envoy under an id that was never used before and returns its pid.
	Start(ctx context.Context, spec StartSpec) (pid int, err error)
	Signal(ctx context.Context, id string, signal syscall.Signal) error
	// Exits delivers each process that ended while this agent was connected, once.
	Exits() <-chan Process
	// Done is closed when the connection is lost. Whether the processes have ended with the keeper
	// is known from the next one.
	Done() <-chan struct{}
}

// Ledger is what the keeper stores of processes, independent of the agent.
type Ledger interface {
	// Processes lists all that live, and those that exited and were not forgotten.
	Processes(ctx context.Context) ([]Process, error)
	// Measure is Processes with their Connections. It may take long on a busy machine.
	Measure(ctx context.Context) ([]Process, error)
	Annotate(ctx context.Context, id string, note json.RawMessage) error
	Forget(ctx context.Context, id string) error
}

// Repair is what takes the right to touch Envoy's sockets and shared memory, or its user.
type Repair interface {
	// Run runs a program to its end as Envoy's user.
	Run(ctx context.Context, command Command) (RunResult, error)
	// ClearInitializing clears the flag that a failed start leaves in a lineage's shared memory.
	ClearInitializing(ctx context.Context, lineage int) error
	// Steer directs new connections of the ports that two processes share to one of them, until the
	// other ends, which closes its listeners after a time.
	Steer(ctx context.Context, from, to string, closes time.Duration) error
	// Cleanup removes sockets and shared memory of ended Envoys.
	Cleanup(ctx context.Context) error
}

// StartSpec is what the keeper needs to start an Envoy, and to stand in for it if it dies before
// its child ends it.
type StartSpec struct {
	ID           string
	Number       int  // for people and log lines
	RestartEpoch int  // as in Launch
	Lineage      int  // as in Launch
	HotRestart   bool // as in Launch
	Command      Command
	Note         json.RawMessage
	Own          []netip.AddrPort // as in Spec
}

// Process is one Envoy as its keeper sees it.
type Process struct {
	ID          string
	PID         int
	Started     time.Time
	Exit        *Exit  // nil = it lives
	Connections uint64 // only from Measure: of clients
	Listening   bool   // it has a socket of a TCP or UDP listener
	Note        json.RawMessage
}

// Exit is how a process ended.
type Exit struct {
	Code      int    // -1 if a signal ended it
	Signal    string // "SIGKILL"; "" = none
	CoreDump  bool
	At        time.Time
	LastLines []string // of its log, oldest first
	// WithKeeper says that its keeper ended, which counts for neither back-off nor restart_limit.
	WithKeeper bool
}

// RunResult is the outcome of a program that ran to its end.
type RunResult struct {
	Output []byte // standard output and error
	Exit   int
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

// ServerState is what an Envoy says of itself.
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
