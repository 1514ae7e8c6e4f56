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

// meshHost is the agent that joins or leaves a mesh, together with the files of a join.
type meshHost struct {
	config.JoinFiles
	a       *app
	client  *api.Client
	running bool
	status  api.Status     // zero if the agent does not run
	options config.Options // of its configuration
	uid     int            // user of the agent
	unit    string         // of the agent
	unlock  func()
}

// meshHost finds and locks the agent and its files. The agent need not run.
func (a *app) meshHost(ctx context.Context) (_ *meshHost, err error) {
	h := &meshHost{a: a, client: a.client(), unit: a.unitName() + ".service",
		options: config.Options{Instance: a.instance, Directory: a.paths.configuration,
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
			h.options = h.options.ForFile(h.status.ConfigFiles[0])
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

// agentUser returns the user of an agent's process or, if none runs (pid 0), of its unit.
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

// joined reports whether the host has joined a mesh: the drop-in exists or, if a leave was killed
// before the reload, the agent still has it loaded.
func (h *meshHost) joined() bool { return exists(h.DropIn) || h.loaded() }

// loaded reports whether the agent runs with the drop-in.
func (h *meshHost) loaded() bool { return slices.Contains(h.status.ConfigFiles, h.DropIn) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// certified returns the end of validity of the agent's certificate, the zero time if it has no
// valid one.
func certified(s api.Status, now time.Time) time.Time {
	for _, i := range s.Identities {
		if i.Name == identity.DefaultSecret && now.Before(i.NotAfter) {
			return i.NotAfter
		}
	}
	return time.Time{}
}

// lockFolder locks a folder for joins until unlock is called.
func lockFolder(path string) (unlock func(), err error) {
	unlock = func() {}
	folder, err := os.Open(path)
	if err != nil {
		return unlock, fmt.Errorf("%w; install Outrider", err)
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = folder.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return unlock, errors.New("another \"outrider join\" or \"outrider leave\" runs; wait for it")
		}
		return unlock, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = folder.Close() }, nil
}
