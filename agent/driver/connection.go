package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
)

// Connection implements epoch.Keeper over one connection to a keeper.
type Connection struct {
	*keeper.Client
	exits chan epoch.Process
}

// Exits returns the channel of ended processes (epoch.Keeper).
func (c *Connection) Exits() <-chan epoch.Process { return c.exits }

// Start starts an Envoy.
func (c *Connection) Start(ctx context.Context, spec epoch.StartSpec) (int, error) {
	process, err := c.Client.Start(ctx, keeper.StartSpec{
		ID: spec.ID, Number: spec.Number, Epoch: spec.RestartEpoch, Lineage: spec.Lineage,
		Path: spec.Command.Path, Args: spec.Command.Args, Env: spec.Command.Env,
		HotRestart: spec.HotRestart, Note: spec.Note,
	})
	return process.PID, err
}

// Signal sends a signal to a process.
func (c *Connection) Signal(ctx context.Context, id string, signal syscall.Signal) error {
	return c.Client.Signal(ctx, id, signal)
}

// Processes returns all processes that the keeper knows, including ended ones.
func (c *Connection) Processes(ctx context.Context) ([]epoch.Process, error) {
	return processesOf(c.Client.Processes(ctx))
}

// Measure returns Processes with current connection counts.
func (c *Connection) Measure(ctx context.Context) ([]epoch.Process, error) {
	return processesOf(c.Client.Measure(ctx, 0))
}

func processesOf(found []keeper.Process, err error) ([]epoch.Process, error) {
	if err != nil {
		return nil, err
	}
	processes := make([]epoch.Process, len(found))
	for i, p := range found {
		processes[i] = processOf(p)
	}
	return processes, nil
}

// Annotate stores the supervisor's note of a process in the keeper.
func (c *Connection) Annotate(ctx context.Context, id string, note json.RawMessage) error {
	return c.Client.Annotate(ctx, id, note)
}

// Run runs a short command as Envoy's user.
func (c *Connection) Run(ctx context.Context, command epoch.Command) (epoch.RunResult, error) {
	result, err := c.Client.Run(ctx, command.Path, command.Args)
	if err != nil {
		return epoch.RunResult{}, err
	}
	if result.TimedOut {
		return epoch.RunResult{}, fmt.Errorf("%s did not end in time", command.Path)
	}
	return epoch.RunResult{Output: append(result.Stdout, result.Stderr...),
		Exit: exitStatus(result.Exit)}, nil
}

// ClearInitializing clears the initializing flag that a failed start leaves in shared memory.
func (c *Connection) ClearInitializing(ctx context.Context, lineage int) error {
	_, err := c.Client.ClearInitializing(ctx, lineage)
	return err
}

// Cleanup removes the sockets and the shared memory of Envoys. It fails while one runs.
func (c *Connection) Cleanup(ctx context.Context) error { return c.Client.Cleanup(ctx) }

func processOf(p keeper.Process) epoch.Process {
	process := epoch.Process{ID: p.ID, PID: p.PID, Started: p.Started, Connections: p.Downstream,
		Listening: p.Listening, Note: p.Note}
	if p.Exit != nil {
		process.Exit = &epoch.Exit{Code: p.Exit.Code, Signal: p.Exit.Signal,
			CoreDump: p.Exit.CoreDump, At: p.Exit.At,
			LastLines: envoy.RedactLines(p.LastLines)}
	}
	return process
}

// exitStatus returns an exit as a shell does: the code, or 128 + the signal number.
func exitStatus(exit keeper.Exit) int {
	if exit.Signal != "" {
		return 128 + int(unix.SignalNum(exit.Signal))
	}
	return exit.Code
}

// Runner implements envoy.Runner by running commands in the keeper.
type Runner struct{ Link *Link }

// Run runs a program until it ends.
func (r Runner) Run(
	ctx context.Context, path string, args []string,
) (stdout, stderr []byte, exit int, err error) {
	result, err := r.Link.Get().Client.Run(ctx, path, args)
	if err != nil {
		return nil, nil, 0, err
	}
	if result.TimedOut {
		return nil, nil, 0, fmt.Errorf("%s did not end in time: %w", path, context.DeadlineExceeded)
	}
	return result.Stdout, result.Stderr, exitStatus(result.Exit), nil
}
