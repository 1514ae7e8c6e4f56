package epoch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
)

// fakeKeeper is an agent's connection to the modelled keeper.
type fakeKeeper struct {
	w     *world
	exits chan keeper.Process
	done  chan struct{}
}

// connect connects an agent to the keeper, and closes the connection of the agent before it.
func (w *world) connect() *fakeKeeper {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keeper = &fakeKeeper{w: w, exits: make(chan keeper.Process, 1000), done: make(chan struct{})}
	return w.keeper
}

// lose closes the agent's connection, as a keeper that re-executes itself does; its Envoys
// continue.
func (w *world) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := w.keeper
	w.keeper = nil
	close(lost.done)
}

// die kills the keeper and with it its Envoys.
func (w *world) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := w.keeper
	w.keeper, w.ending = nil, false
	for _, e := range w.all {
		e.told = true
		w.end(e, 0, "")
		e.forgotten = true
	}
	close(lost.done)
}

// stopEnvoys models the start of a keeper's stop: its Envoys exit, and it starts no others.
func (w *world) stopEnvoys() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ending = true
	for _, e := range w.all {
		e.told = true
		w.end(e, 0, "")
	}
}

// exists reports whether a process with this PID runs.
func (w *world) exists(pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.all, func(e *fakeEnvoy) bool { return e.pid == pid && e.exit == nil })
}

// exitPause is the interval at which awaitExit checks.
const exitPause = 100 * time.Millisecond

// awaitExit blocks until an Envoy has exited, or ctx ends.
func (w *world) awaitExit(ctx context.Context, pid int) bool {
	for w.exists(pid) {
		if !sleep(ctx, exitPause) {
			return false
		}
	}
	return true
}

// pause blocks while the keeper hangs, but not after the end of ctx.
func (k *fakeKeeper) pause(ctx context.Context) error {
	k.w.mu.Lock()
	hung := k.w.hungKeeper
	k.w.mu.Unlock()
	if hung == nil {
		return nil
	}
	select {
	case <-hung:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *fakeKeeper) with(ctx context.Context, id string, f func(*fakeEnvoy) error) error {
	if err := k.pause(ctx); err != nil {
		return err
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.w.keeper != k {
		return errKeeperLost
	}
	for _, e := range k.w.all {
		if e.ID == id && !e.forgotten {
			return f(e)
		}
	}
	return fmt.Errorf("no process %q", id)
}

func (k *fakeKeeper) Start(ctx context.Context, spec keeper.StartSpec) (keeper.Process, error) {
	if err := k.pause(ctx); err != nil {
		return keeper.Process{}, err
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.w.keeper != k {
		return keeper.Process{}, errKeeperLost
	}
	if k.w.ending {
		return keeper.Process{}, errors.New("the keeper is stopping")
	}
	return k.w.start(spec).process(), nil
}

func (k *fakeKeeper) Signal(ctx context.Context, id string, signal syscall.Signal) error {
	return k.with(ctx, id, func(e *fakeEnvoy) error {
		if e.exit == nil {
			k.w.signal(e, signal)
		}
		return nil
	})
}

func (k *fakeKeeper) Exits() <-chan keeper.Process { return k.exits }
func (k *fakeKeeper) Done() <-chan struct{}        { return k.done }

func (k *fakeKeeper) Processes(ctx context.Context) ([]keeper.Process, error) {
	all, err := k.list(ctx)
	for i := range all {
		all[i].ClientConnections = 0
	}
	return all, err
}

func (k *fakeKeeper) MeasureProcesses(ctx context.Context, _ time.Duration) ([]keeper.Process,
	error) {
	k.w.mu.Lock()
	k.w.measured++
	unmeasured := k.w.unmeasured
	k.w.mu.Unlock()
	if unmeasured {
		return nil, errors.New("the tables are being read")
	}
	return k.list(ctx)
}

func (k *fakeKeeper) list(ctx context.Context) ([]keeper.Process, error) {
	if err := k.pause(ctx); err != nil {
		return nil, err
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.w.keeper != k {
		return nil, errKeeperLost
	}
	var all []keeper.Process
	for _, e := range k.w.all {
		if !e.forgotten {
			all = append(all, e.process())
		}
	}
	return all, nil
}

func (k *fakeKeeper) SetNote(ctx context.Context, id string, note json.RawMessage) error {
	return k.with(ctx, id, func(e *fakeEnvoy) error { e.note = slices.Clone(note); return nil })
}

func (k *fakeKeeper) Forget(ctx context.Context, id string) error {
	return k.with(ctx, id, func(e *fakeEnvoy) error { e.forgotten = true; return nil })
}

func (k *fakeKeeper) Run(ctx context.Context, _ string, args []string) (keeper.RunResult, error) {
	k.w.mu.Lock()
	k.w.runs++
	invalid := k.w.behaviour[args[0]].invalid
	k.w.mu.Unlock()
	if err := k.pause(ctx); err != nil {
		return keeper.RunResult{}, err
	}
	sleep(ctx, 60*time.Millisecond)
	if invalid {
		return keeper.RunResult{Exit: keeper.Exit{Code: 1}, Stdout: []byte("[info] reading\nunknown cluster 'x'\n")}, nil
	}
	return keeper.RunResult{Stdout: []byte("configuration OK\n")}, nil
}

func (k *fakeKeeper) ClearInitializingFlag(ctx context.Context, lineage int) (set bool, err error) {
	if err := k.pause(ctx); err != nil {
		return false, err
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if m := k.w.memory[lineage]; m != nil && !k.w.unclear {
		set, m.initializing = m.initializing, false
	}
	return set, nil
}

func (k *fakeKeeper) SteerNewConnections(ctx context.Context, from, to string,
	closes time.Duration) error {
	k.w.mu.Lock()
	unsteered := k.w.unsteered
	k.w.mu.Unlock()
	if unsteered {
		return errors.New("the keeper does not know the operation \"steer\"")
	}
	if err := k.with(ctx, to, func(e *fakeEnvoy) error {
		if e.exit != nil {
			return fmt.Errorf("epoch %d has ended", e.EpochNumber)
		}
		return nil
	}); err != nil {
		return err
	}
	return k.with(ctx, from, func(e *fakeEnvoy) error {
		e.steered, e.closes = true, time.Now().Add(closes)
		return nil
	})
}

func (k *fakeKeeper) RemoveEnvoyFiles(ctx context.Context) error {
	if err := k.pause(ctx); err != nil {
		return err
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	for _, e := range k.w.all {
		if e.exit == nil {
			k.w.fault("cleaned up while epoch %d lives", e.EpochNumber)
		}
	}
	k.w.cleaned++
	return nil
}

// fakeAdmin is a client of the admin interface at an address. The Envoy that listens there may
// change.
type fakeAdmin struct {
	w       *world
	address string
}

func (a fakeAdmin) with(ctx context.Context, f func(*fakeEnvoy)) error { return a.ask(ctx, f, false) }

// change calls f for the Envoy at the address. If the Envoy is stopped (SIGSTOP), f is called when
// the Envoy continues, even if the caller's context has ended by then.
func (a fakeAdmin) change(ctx context.Context, f func(*fakeEnvoy)) error { return a.ask(ctx, f, true) }

func (a fakeAdmin) ask(ctx context.Context, f func(*fakeEnvoy), late bool) error {
	a.w.mu.Lock()
	var found *fakeEnvoy
	for _, e := range a.w.all {
		if e.exit == nil && e.admin && fmt.Sprintf("admin-%d.sock", e.EpochNumber) == a.address {
			found = e
		}
	}
	if found == nil {
		a.w.mu.Unlock()
		return syscall.ECONNREFUSED
	}
	if found.stopped {
		if late {
			found.late = append(found.late, f)
		}
		a.w.mu.Unlock()
		<-ctx.Done()
		return ctx.Err()
	}
	defer a.w.mu.Unlock()
	f(found)
	a.w.look()
	return nil
}

func (a fakeAdmin) State(ctx context.Context) (state ServerState, err error) {
	err = a.with(ctx, func(e *fakeEnvoy) {
		state = ServerState{Server: "PRE_INITIALIZING", RestartEpoch: -1}
		if !e.live.IsZero() {
			state = ServerState{Server: "LIVE", RestartEpoch: e.RestartEpoch, WorkersStarted: true}
		}
	})
	return state, err
}

func (a fakeAdmin) FailHealthcheck(ctx context.Context) error {
	a.pause()
	return a.change(ctx, func(e *fakeEnvoy) { e.unhealthy = true })
}

func (a fakeAdmin) OKHealthcheck(ctx context.Context) error {
	a.pause()
	return a.change(ctx, func(e *fakeEnvoy) { e.unhealthy = false })
}

// pause delays a request that changes the health check. The fake Envoy's slowAdmin is the delay.
func (a fakeAdmin) pause() {
	a.w.mu.Lock()
	var slow time.Duration
	for _, e := range a.w.all {
		if fmt.Sprintf("admin-%d.sock", e.EpochNumber) == a.address {
			slow = e.slowAdmin
		}
	}
	a.w.mu.Unlock()
	time.Sleep(slow) //house:sleep of the bubble's clock
}

func (a fakeAdmin) DrainListeners(ctx context.Context, graceful bool) error {
	if !graceful { // the keeper first makes all Envoys refuse new connections
		a.w.mu.Lock()
		for _, e := range a.w.all {
			e.listening = false
		}
		a.w.look()
		a.w.mu.Unlock()
	}
	refused := false
	if err := a.with(ctx, func(e *fakeEnvoy) {
		refused = e.undrainable
		e.stopped = e.stopped || e.stalls
	}); err != nil {
		return err
	}
	if refused {
		return syscall.ENOENT
	}
	return a.change(ctx, func(e *fakeEnvoy) {
		if graceful {
			a.w.later(e, e.drain, func() { a.w.closeListeners(e) })
		}
	})
}

func (a fakeAdmin) ActiveTraffic(ctx context.Context) (activity envoy.ActiveTraffic, err error) {
	err = a.with(ctx, func(e *fakeEnvoy) {
		activity = envoy.ActiveTraffic{Connections: e.requests + e.tunnels + e.idle, Requests: e.requests,
			Tunnels: e.tunnels}
	})
	return activity, err
}

func (a fakeAdmin) SetLogLevels(ctx context.Context, level, components string) error {
	unset := false
	err := a.with(ctx, func(e *fakeEnvoy) {
		if unset = e.unlevelled; !unset {
			e.levels = append(e.levels, level+" "+components)
		}
	})
	if unset {
		err = errors.New("unknown component")
	}
	return err
}
