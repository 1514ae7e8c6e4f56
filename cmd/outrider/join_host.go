package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
)

// meshHost describes the agent that joins or leaves a mesh, and the paths of a join's files.
type meshHost struct {
	config.JoinFiles
	a       *app
	client  *api.Client
	running bool
	status  api.Status     // status of the agent; zero if the agent does not run
	options config.Options // options to load the agent's configuration
	uid     int            // UID of the agent's user
	unit    string         // systemd unit of the agent
	unlock  func()
}

// meshHost returns the description of the agent, which need not run. It locks the configuration
// folder against other joins and leaves until the result is closed.
func (a *app) meshHost(ctx context.Context) (_ *meshHost, err error) {
	h := &meshHost{a: a, client: a.client(), unit: a.unitName() + ".service",
		options: config.Options{Instance: a.instance, ConfigDirectory: a.paths.configuration,
			CheckOnly: true}, unlock: func() {}}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	h.status, err = h.client.Status(ctx)
	_, absent := errors.AsType[*api.NotRunningError](err)
	switch {
	case err == nil:
		h.running = true
		if len(h.status.ConfigFiles) > 0 {
			h.options = h.options.WithMainFile(h.status.ConfigFiles[0])
		}
	case !absent || a.socket != "":
		return nil, err
	}
	if h.JoinFiles, err = h.options.JoinFiles(); err != nil {
		return nil, err
	}
	if h.unlock, err = lockFolder(filepath.Dir(h.Main)); err != nil {
		return nil, err
	}
	h.uid, err = a.agentUser(ctx, h.status.PID, h.unit)
	return h, err
}

func (h *meshHost) close() {
	h.client.Close()
	h.unlock()
}

// agentUser returns the UID of the agent's process or, if pid is 0, of the user in its unit.
func (a *app) agentUser(ctx context.Context, pid int, unit string) (int, error) {
	if pid == 0 {
		return lookUp(cmp.Or(a.unit(ctx, unit).User, "outrider"))
	}
	info, err := os.Stat(filepath.Join(a.paths.processes, strconv.Itoa(pid)))
	if err != nil {
		return 0, fmt.Errorf("cannot find the user of the agent: %w", err)
	}
	return int(status(info).Uid), nil
}

// joined reports whether the host has joined a mesh: the configuration file that `outrider join`
// writes exists, or the agent still uses the file after an `outrider leave` that was killed before
// the reload.
func (h *meshHost) joined() bool { return exists(h.DropIn) || h.loaded() }

// loaded reports whether the agent's current configuration includes the file that `outrider join`
// writes.
func (h *meshHost) loaded() bool { return slices.Contains(h.status.ConfigFiles, h.DropIn) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// certified returns the expiry of the agent's certificate; zero if it has no valid certificate.
func certified(s api.Status, now time.Time) time.Time {
	for _, i := range s.Identities {
		if i.Name == identity.DefaultSecret && now.Before(i.NotAfter) {
			return i.NotAfter
		}
	}
	return time.Time{}
}

// lockFolder locks a folder against other joins and leaves until unlock is called.
func lockFolder(path string) (unlock func(), err error) {
	unlock = func() {}
	folder, err := os.Open(path)
	if err != nil {
		return unlock, fmt.Errorf("%w; install Outrider", err)
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = folder.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return unlock, errors.New("another \"outrider join\" or \"outrider leave\" is " +
				"running; wait until it has ended")
		}
		return unlock, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = folder.Close() }, nil
}
