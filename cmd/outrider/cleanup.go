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
	var runtimeDir, keeperDir string
	command := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove leftover sockets and shared memory; needs no configuration and no agent",
		Long: "Cleanup removes what an agent, a keeper or an Envoy that is gone has left behind. It touches nothing of a keeper\n" +
			"that lives, unless --stop says that everything is to end: then the keeper and its Envoys are ended first.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return &api.Error{Status: 403, Message: "not authorised: only root may clean up"}
			}
			c := cleaner{
				runtime: a.runtimeDir(), keeper: filepath.Join(a.places.keeper, a.instance),
				sharedMemory: a.places.sharedMemory, processes: a.places.processes,
			}
			if runtimeDir != "" { // the agent puts its keeper into a runtime folder that is not the usual one
				c.runtime, c.keeper = runtimeDir, filepath.Join(runtimeDir, "keeper")
			}
			if keeperDir != "" {
				c.keeper = keeperDir
			}
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
	command.Flags().BoolVar(&stop, "stop", false, "end a keeper that lives, and its Envoys")
	command.Flags().StringVar(&runtimeDir, "runtime-dir", "", "the agent's runtime `folder` (default "+a.places.runtime+"[/NAME])")
	command.Flags().StringVar(&keeperDir, "keeper-dir", "", "the keeper's `folder` (default "+a.places.keeper+"[/NAME]; with --runtime-dir, keeper in it)")
	return command
}

// cleaner removes what is left of one instance. It says in done what it did, a sentence each.
type cleaner struct {
	runtime      string // agent's runtime folder
	keeper       string // keeper's folder: its lock, base id, Envoy's sockets
	sharedMemory string // /dev/shm
	processes    string // /proc
	done         []string
}

// shutdownTime is how long a keeper may take to end its Envoys (it kills them after five seconds itself).
const shutdownTime = 15 * time.Second

func (c *cleaner) clean(ctx context.Context, stop bool) error {
	c.done = []string{}
	lock, err := c.lock()
	if errors.Is(err, errAlive) && stop {
		if err := c.endKeeper(ctx); err != nil {
			return err
		}
		lock, err = c.lock()
	}
	if errors.Is(err, errAlive) {
		c.tell("a keeper lives in %s: nothing of it was touched", c.keeper)
		return c.removeSockets(c.runtime, "outrider.sock")
	}
	if err != nil {
		return err
	}
	if lock != nil {
		defer func() { _ = lock.Close() }() // no keeper begins while its folder is being cleaned
	}
	err = errors.Join(
		c.removeSharedMemory(),
		c.removeSockets(c.keeper, "*"),
		c.removeSockets(c.runtime, "*.sock"),
		c.removeSockets(filepath.Join(c.runtime, "envoy"), "*.sock"),
		c.removeFiles(filepath.Join(c.runtime, "envoy", "envoy-rev*.json")),
	)
	if lock != nil && err == nil {
		err = c.removeFiles(filepath.Join(c.keeper, "base-id"))
		err = errors.Join(err, os.Remove(lock.Name())) // last: the next keeper may begin
	}
	return err
}

func (c *cleaner) tell(format string, arguments ...any) {
	c.done = append(c.done, fmt.Sprintf(format, arguments...))
}

var errAlive = errors.New("a keeper lives there")

// lock takes the lock that a keeper holds as long as it lives; nil where there is none. Unlike a connection to its socket
// this starts nothing under socket activation.
func (c *cleaner) lock() (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(c.keeper, "lock"), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look whether a keeper lives: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errAlive
		}
		return nil, fmt.Errorf("look whether a keeper lives: lock %s: %w", file.Name(), err)
	}
	return file, nil
}

// endKeeper asks the keeper to end its Envoys and itself, and waits for it.
func (c *cleaner) endKeeper(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownTime)
	defer cancel()
	// Under systemd the socket is the agent's, else it is in the keeper's folder.
	client, err := keeper.Dial(ctx, filepath.Join(c.keeper, "keeper.sock"))
	if errors.Is(err, keeper.ErrNotRunning) {
		client, err = keeper.Dial(ctx, filepath.Join(c.runtime, "keeper.sock"))
	}
	if err != nil {
		return fmt.Errorf("end the keeper that lives in %s: %w", c.keeper, err)
	}
	defer client.Close()
	if err := client.Shutdown(ctx); err != nil && !errors.Is(err, keeper.ErrClosed) {
		return fmt.Errorf("end the keeper that lives in %s: %w", c.keeper, err)
	}
	for {
		lock, err := c.lock()
		if err == nil {
			if lock != nil {
				_ = lock.Close()
			}
			c.tell("ended the keeper in %s", c.keeper)
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the keeper in %s did not end within %s", c.keeper, shutdownTime)
		}
	}
}
