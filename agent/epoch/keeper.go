package epoch

import (
	"context"
	"encoding/json"
	"syscall"
	"time"
)

// Keeper owns the processes. Its methods may be called by several goroutines; the supervisor bounds each by a context.
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
	// Exits tells each process that ended while this agent was connected, once.
	Exits() <-chan Process
	// Done is closed when the connection is lost. The processes may have ended with the keeper or not: the next one tells.
	Done() <-chan struct{}
}

// Ledger is what the keeper remembers of processes whatever becomes of the agent.
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
	// ClearInitializing clears the flag that a failed start leaves in the shared memory of a lineage.
	ClearInitializing(ctx context.Context, lineage int) error
	// Steer has new connections of the ports that two processes share go to one of them alone, until the other ends, which is to close
	// its listeners after a time.
	Steer(ctx context.Context, from, to string, closes time.Duration) error
	// Cleanup removes what ended Envoys leave behind: sockets and shared memory. Nothing of a living process.
	Cleanup(ctx context.Context) error
}

// StartSpec is what the keeper needs to start an Envoy, and to rescue its child if it dies too early.
type StartSpec struct {
	ID           string
	Number       int  // for people and log lines
	RestartEpoch int  // as in Launch
	Lineage      int  // as in Launch
	HotRestart   bool // as in Launch
	Command      Command
	Note         json.RawMessage
}

// Process is one Envoy as its keeper sees it.
type Process struct {
	ID          string
	PID         int
	Started     time.Time
	Exit        *Exit  // nil = it lives
	Connections uint64 // only from Measure: made by clients; all of the process if its keeper cannot tell them apart
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
}

// RunResult is the outcome of a program that ran to its end.
type RunResult struct {
	Output []byte // standard output and error
	Exit   int
}

// Admin is the admin interface of one epoch. An error that is a time-out (or EAGAIN: the queue of its socket is full)
// means that Envoy hangs; any other that there is no such interface (any more).
type Admin interface {
	State(ctx context.Context) (ServerState, error)
	// FailHealthcheck and OKHealthcheck are /healthcheck/fail and /healthcheck/ok.
	FailHealthcheck(ctx context.Context) error
	OKHealthcheck(ctx context.Context) error
	// DrainListeners is /drain_listeners: closes them at once, or, if graceful, when the drain time is over. At once no Envoy is
	// let a new connection in any more, even if none can be asked.
	DrainListeners(ctx context.Context, graceful bool) error
	Activity(ctx context.Context) (Activity, error)
}

// ServerState is what an Envoy says of itself.
type ServerState struct {
	Server         string // /server_info's state: "LIVE", "PRE_INITIALIZING", "INITIALIZING", "DRAINING"
	RestartEpoch   int    // /server_info's command_line_options.restart_epoch, or OwnAddress; counts only if Live
	WorkersStarted bool   // the gauge listener_manager.workers_started: listeners accept
}

// OwnAddress is a ServerState's RestartEpoch where nobody but the epoch in question can answer: no other one that lives has its address.
const OwnAddress = -1

// Live is whether Envoy serves. One whose health check was failed says DRAINING, and serves.
func (s ServerState) Live() bool {
	return (s.Server == "LIVE" || s.Server == "DRAINING") && s.WorkersStarted
}
