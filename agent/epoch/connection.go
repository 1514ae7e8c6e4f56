package epoch

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/keeper"
)

// KeeperConnection implements Keeper with one connection to a keeper.
type KeeperConnection struct {
	*keeper.Client
	exits chan keeper.Process
}

// Exits implements Keeper.
func (c *KeeperConnection) Exits() <-chan keeper.Process { return c.exits }

// exitStatus returns the status of an exit as a shell would: the code, or 128 + the signal number.
func exitStatus(exit keeper.Exit) int {
	if exit.Signal != "" {
		return 128 + int(unix.SignalNum(exit.Signal))
	}
	return exit.Code
}

// KeeperCommandRunner implements envoy.Runner by running commands in the keeper.
type KeeperCommandRunner struct{ Link *KeeperLink }

// Run runs a program until it ends.
func (r KeeperCommandRunner) Run(
	ctx context.Context, path string, args []string,
) (stdout, stderr []byte, exit int, err error) {
	return runCommand(ctx, r.Link.Connection(), path, args)
}

func runCommand(
	ctx context.Context, k Keeper, path string, args []string,
) (stdout, stderr []byte, exit int, err error) {
	result, err := k.Run(ctx, path, args)
	if err != nil {
		return nil, nil, 0, err
	}
	if result.TimedOut {
		return nil, nil, 0, fmt.Errorf("%s did not exit in time: %w", path,
			context.DeadlineExceeded)
	}
	return result.Stdout, result.Stderr, exitStatus(result.Exit), nil
}
