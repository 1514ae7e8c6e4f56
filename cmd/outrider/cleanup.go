package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/keeper"
)

func (a *app) cleanupCommand() *cobra.Command {
	var stop bool
	var runtimeDir, keeperDir, unit string
	command := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove leftover sockets and shared memory; needs no configuration and no agent",
		Long: "Cleanup removes what an agent, a keeper or an Envoy that is gone has left\n" +
			"behind. It touches nothing of a running keeper, unless --stop says that\n" +
			"everything is to end: then the keeper and its Envoys are ended first. With --unit\n" +
			"the same applies while systemd stops that unit, as opposed to a restart or a crash.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return &api.Error{Status: 403, Message: "not authorised: only root may clean up"}
			}
			c := cleaner{
				runtime: a.runtimeDir(), keeper: filepath.Join(a.paths.keeper, a.instance),
				sharedMemory: a.paths.sharedMemory, processes: a.paths.processes,
				capture:  filepath.Join(a.paths.capture, a.instance),
				instance: a.instance,
			}
			// An agent with its own runtime folder has its keeper's folder in it.
			if runtimeDir != "" {
				c.runtime, c.keeper = runtimeDir, filepath.Join(runtimeDir, "keeper")
			}
			if keeperDir != "" {
				c.keeper = keeperDir
			}
			stop = stop || unit != "" && stopping(command.Context(), unit)
			err := c.clean(command.Context(), stop)
			if a.json {
				err = errors.Join(a.printJSON(c.done), err)
			} else {
				for _, line := range c.done {
					fmt.Fprintln(a.out, line)
				}
			}
			return err
		},
	}
	command.Flags().BoolVar(&stop, "stop", false, "end a running keeper, and its Envoys")
	command.Flags().StringVar(&unit, "unit", "", "do what --stop does if systemd stops this `unit`")
	command.Flags().StringVar(&runtimeDir, "runtime-dir", "",
		"the agent's runtime `folder` (default "+a.paths.runtime+"[/NAME])")
	command.Flags().StringVar(&keeperDir, "keeper-dir", "",
		"the keeper's `folder` (default "+a.paths.keeper+"[/NAME]; with --runtime-dir, keeper "+
			"in it)")
	return command
}

// cleaner removes what an agent instance has left. done has a sentence for each removal.
type cleaner struct {
	runtime      string // agent's runtime folder
	keeper       string // keeper's folder, with its lock, base ID and Envoy's sockets
	sharedMemory string // /dev/shm
	processes    string // /proc
	capture      string // folder of outrider-capture
	instance     string
	done         []string
}

// shutdownTime bounds the shutdown of a keeper. A keeper kills Envoys that do not end within 5 s.
const shutdownTime = 15 * time.Second

// Names of files in the keeper's folder; see package agent/keeper.
const (
	lockName         = "lock"
	baseIDName       = "base-id"
	keeperSocketName = "keeper.sock"
)

func (c *cleaner) clean(ctx context.Context, stop bool) error {
	c.done = []string{}
	keepers, err := openFolder(c.keeper)
	if err != nil {
		return err
	}
	defer keepers.close()
	agents, err := openFolder(c.runtime)
	if err != nil {
		return err
	}
	defer agents.close()
	lock, err := c.lock(keepers)
	// After a crash of the agent, the capture rules of fail = "closed" must remain until systemd
	// has restarted it.
	if stop || err == nil && !afterCrash() {
		if err := c.endCapture(ctx, agents); err != nil {
			return err
		}
	} else if afterCrash() {
		c.reportClosed()
	}
	if errors.Is(err, errAlive) && stop {
		if err := c.endKeeper(ctx, keepers, agents); err != nil {
			return err
		}
		lock, err = c.lock(keepers)
	}
	if errors.Is(err, errAlive) {
		c.report("Envoy continues to run (its keeper is in %s): nothing of it was removed", c.keeper)
		return c.removeSockets(agents, "outrider.sock")
	}
	if err != nil {
		return err
	}
	if lock != nil {
		defer func() { _ = lock.Close() }() // while it is locked, no keeper can start
	}
	err = errors.Join(
		c.removeSharedMemory(keepers),
		c.removeSockets(keepers, "*"),
		c.removeSockets(agents, "*.sock"),
		c.cleanConfiguration(agents),
	)
	if lock != nil && err == nil {
		err = c.removeFiles(keepers, baseIDName)
		_, failed := keepers.remove(lockName) // last, because a keeper can start without it
		err = errors.Join(err, failed)
	}
	return err
}

// cleanConfiguration removes the bootstraps and sockets that the agent made for Envoy.
func (c *cleaner) cleanConfiguration(agents *folder) error {
	configuration, err := agents.sub("envoy")
	if err != nil || configuration == nil {
		return err
	}
	defer configuration.close()
	return errors.Join(c.removeSockets(configuration, "*.sock"),
		c.removeFiles(configuration, "envoy-rev*.json"))
}

func (c *cleaner) report(format string, arguments ...any) {
	c.done = append(c.done, fmt.Sprintf(format, arguments...))
}

var errAlive = errors.New("a keeper is running in this directory")

// lock locks the keeper's lock file, and returns it; nil if the file does not exist. A running
// keeper holds this lock: the error is then errAlive. Connecting to the keeper's socket is no test,
// because systemd would start a keeper.
func (c *cleaner) lock(keepers *folder) (*os.File, error) {
	if keepers == nil {
		return nil, nil
	}
	file, err := keepers.openRegular(lockName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errNotRegular):
		c.report("%v: no keeper holds it", err)
		// remove the entry: it is no regular file, so no keeper can hold a lock on it
		return nil, c.remove(keepers, lockName)
	case errors.Is(err, unix.EWOULDBLOCK): // another process has a file lease (fcntl F_SETLEASE)
		return nil, errAlive
	case err != nil:
		return nil, fmt.Errorf("check for a running keeper: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errAlive
		}
		return nil, fmt.Errorf("check for a running keeper: lock %s: %w", file.Name(), err)
	}
	return file, nil
}

// endKeeper makes the keeper end its Envoys and exit, and waits until it has exited.
func (c *cleaner) endKeeper(ctx context.Context, keepers, agents *folder) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownTime)
	defer cancel()
	// Under systemd, the socket of the keeper is in the agent's folder instead.
	client, err := dialKeeper(ctx, keepers)
	if errors.Is(err, keeper.ErrNotRunning) {
		client, err = dialKeeper(ctx, agents)
	}
	if err != nil {
		return fmt.Errorf("end the keeper that runs in %s: %w", c.keeper, err)
	}
	defer client.Close()
	if err := client.Shutdown(ctx); err != nil && !errors.Is(err, keeper.ErrClosed) {
		return fmt.Errorf("end the keeper that runs in %s: %w", c.keeper, err)
	}
	for {
		lock, err := c.lock(keepers)
		if err == nil {
			if lock != nil {
				_ = lock.Close()
			}
			c.report("ended the keeper in %s", c.keeper)
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the keeper in %s did not end within %s", c.keeper, shutdownTime)
		}
	}
}

// dialKeeper connects to the keeper's socket in a folder. It returns keeper.ErrNotRunning if the
// folder has no such socket.
func dialKeeper(ctx context.Context, in *folder) (*keeper.Client, error) {
	if in == nil {
		return nil, keeper.ErrNotRunning
	}
	socket, err := in.pin(keeperSocketName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, keeper.ErrNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("open the keeper's socket in %s: %w", in.path, err)
	}
	defer func() { _ = socket.Close() }()
	client, err := keeper.Dial(ctx, fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", socket.Name(), err)
	}
	return client, nil
}
