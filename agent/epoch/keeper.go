package epoch

import (
	"context"
	"encoding/json"
	"syscall"
	"time"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
)

// Keeper owns the Envoy processes. Its methods may be called concurrently; the supervisor bounds
// each call by a context.
type Keeper interface {
	Processes
	ProcessList
	EnvoyUserOperations
}

// Processes starts, signals and watches Envoy processes.
type Processes interface {
	// Start starts an Envoy. The ID in spec must not have been used before.
	Start(ctx context.Context, spec keeper.StartSpec) (keeper.Process, error)
	Signal(ctx context.Context, id string, signal syscall.Signal) error
	// Exits delivers each process that exits while this connection exists, once.
	Exits() <-chan keeper.Process
	// Done is closed when the connection is lost. Whether the processes exited with the keeper is
	// known only after a connection to the next keeper.
	Done() <-chan struct{}
}

// ProcessList is the keeper's list of processes, which survives the agent.
type ProcessList interface {
	// Processes lists all running processes, and the exited ones whose entries were not removed.
	Processes(ctx context.Context) ([]keeper.Process, error)
	// MeasureProcesses lists the same processes with connection counts that are at most maxAge old.
	// It may be slow on a busy machine.
	MeasureProcesses(ctx context.Context, maxAge time.Duration) ([]keeper.Process, error)
	SetNote(ctx context.Context, id string, note json.RawMessage) error
	Forget(ctx context.Context, id string) error
}

// EnvoyUserOperations has the operations that need access to Envoy's sockets or shared memory, or
// that run as Envoy's user.
type EnvoyUserOperations interface {
	// Run runs a program as Envoy's user until it exits.
	Run(ctx context.Context, path string, args []string) (keeper.RunResult, error)
	// ClearInitializingFlag clears the flag that a failed start leaves in a lineage's shared
	// memory, and reports whether it was set.
	ClearInitializingFlag(ctx context.Context, lineage int) (bool, error)
	// SteerNewConnections directs new connections on the ports that two processes share to one of
	// them. The parameters from and to are the IDs of the process that receives no more connections
	// and of the one that receives them all. The effect lasts until process from exits. closesIn is
	// the time until process from closes its listeners.
	SteerNewConnections(ctx context.Context, from, to string, closesIn time.Duration) error
	// RemoveEnvoyFiles removes sockets and shared memory of ended Envoys.
	RemoveEnvoyFiles(ctx context.Context) error
}

// Admin is the admin interface of one epoch. If an error is a time-out, or EAGAIN because the queue
// of the socket is full, Envoy hangs. Any other error means that the interface is closed or was
// never opened.
type Admin interface {
	State(ctx context.Context) (ServerState, error)
	// FailHealthcheck and OKHealthcheck are /healthcheck/fail and /healthcheck/ok.
	FailHealthcheck(ctx context.Context) error
	OKHealthcheck(ctx context.Context) error
	// DrainListeners closes the listeners (/drain_listeners): after the drain time if graceful is
	// true, otherwise immediately. In the latter case all Envoys of the keeper refuse new
	// connections when it returns, even if none of them responds.
	DrainListeners(ctx context.Context, graceful bool) error
	ActiveTraffic(ctx context.Context) (envoy.ActiveTraffic, error)
	// SetLogLevels sets the level of all components, and then the levels of the listed components
	// ("upstream:debug").
	SetLogLevels(ctx context.Context, level, components string) error
}

// ServerState is the state that an Envoy reports.
type ServerState struct {
	Server       string // state of /server_info, such as "LIVE" or "PRE_INITIALIZING"
	RestartEpoch int    // --restart-epoch or RestartEpochNotRead; only valid if Live
	// the gauge listener_manager.workers_started is 1: the listeners accept connections
	WorkersStarted bool
}

// RestartEpochNotRead is the RestartEpoch of a ServerState if no other running epoch has the same
// admin address, so that the epoch that answers is certain.
const RestartEpochNotRead = -1

// Live reports whether Envoy serves. DRAINING means that /healthcheck/fail was called: Envoy still
// serves.
func (s ServerState) Live() bool {
	return (s.Server == "LIVE" || s.Server == "DRAINING") && s.WorkersStarted
}
