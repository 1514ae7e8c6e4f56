package epoch

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
)

// Connection implements Keeper over one connection to a keeper. Signal, Annotate, Forget,
// Steer, Cleanup and Done are those of the client.
type Connection struct {
	*keeper.Client
	exits chan Process
}

// Exits returns the channel of ended processes (Keeper).
func (c *Connection) Exits() <-chan Process { return c.exits }

// Start starts an Envoy.
func (c *Connection) Start(ctx context.Context, spec StartSpec) (int, error) {
	process, err := c.Client.Start(ctx, keeper.StartSpec{
		ID: spec.ID, Number: spec.Number, Epoch: spec.RestartEpoch, Lineage: spec.Lineage,
		Path: spec.Command.Path, Args: spec.Command.Args, Env: spec.Command.Env,
		HotRestart: spec.HotRestart, Note: spec.Note, Own: spec.Own,
	})
	return process.PID, err
}

// Processes returns all processes that the keeper knows, including ended ones.
func (c *Connection) Processes(ctx context.Context) ([]Process, error) {
	return processesFrom(c.Client.Processes(ctx))
}

// Measure returns Processes with current connection counts.
func (c *Connection) Measure(ctx context.Context) ([]Process, error) {
	return processesFrom(c.Client.Measure(ctx, 0))
}

func processesFrom(found []keeper.Process, err error) ([]Process, error) {
	if err != nil {
		return nil, err
	}
	processes := make([]Process, len(found))
	for i, p := range found {
		processes[i] = processFrom(p)
	}
	return processes, nil
}

// Run runs a short command as Envoy's user.
func (c *Connection) Run(ctx context.Context, command Command) (RunResult, error) {
	stdout, stderr, exit, err := runCommand(ctx, c.Client, command.Path, command.Args)
	return RunResult{Output: append(stdout, stderr...), Exit: exit}, err
}

// ClearInitializing clears the initializing flag that a failed start leaves in shared memory.
func (c *Connection) ClearInitializing(ctx context.Context, lineage int) error {
	_, err := c.Client.ClearInitializing(ctx, lineage)
	return err
}

func processFrom(p keeper.Process) Process {
	process := Process{ID: p.ID, PID: p.PID, Started: p.Started, Connections: p.Downstream,
		Listening: p.Listening, Note: p.Note}
	if p.Exit != nil {
		process.Exit = &Exit{Code: p.Exit.Code, Signal: p.Exit.Signal,
			CoreDump: p.Exit.CoreDump, At: p.Exit.At, WithKeeper: p.Exit.WithKeeper,
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
	return runCommand(ctx, r.Link.Get().Client, path, args)
}

func runCommand(
	ctx context.Context, client *keeper.Client, path string, args []string,
) (stdout, stderr []byte, exit int, err error) {
	result, err := client.Run(ctx, path, args)
	if err != nil {
		return nil, nil, 0, err
	}
	if result.TimedOut {
		return nil, nil, 0, fmt.Errorf("%s did not end in time: %w", path, context.DeadlineExceeded)
	}
	return result.Stdout, result.Stderr, exitStatus(result.Exit), nil
}
