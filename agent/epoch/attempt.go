package epoch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// attempt is one try to have a spec live: several processes one after the other, if a hot restart needs repair.
type attempt struct {
	spec    *Spec
	reason  string
	callers []*caller
	guard   bool // of the guard, not asked for by anyone
	undrain bool // of Undrain: a refusal is the outcome of all undrains that wait
	adopted bool // begun by an agent before this one; the spec has no functions

	process *process // the one it is at
	parent  *process // takes over from it; nil = nobody
	mode    Mode
	liveBy  time.Time
	cancel  context.CancelCauseFunc

	tries      int          // of this mode
	sideBySide bool         // hot restart was given up
	avoid      map[int]bool // lineages that could not be founded
	note       json.RawMessage
	started    bool  // process is among the supervisor's
	answered   bool  // its admin answered: it got past the handshake with its parent
	parentGone bool  // the parent died before the child was live
	failure    error // why it is being ended; nil = it is not
}

// Why an attempt ends. A *Refused carries them as its cause.
var (
	errExited     = errors.New("Envoy exited before it was live")
	errExitedLive = errors.New("Envoy exited as soon as it was live")
	errSilent     = errors.New("the epoch before it does not answer, so a hot restart would hang")
	errHandshake  = errors.New("the hot restart hung in its handshake with the epoch before it")
	errOrphan     = errors.New("the epoch it was to take over from died")
)

// begin plans the attempt's next process and starts a helper that brings it up.
func (s *Supervisor) begin(a *attempt) {
	s.attempt = a
	s.plan(a)
	a.started, a.answered, a.parentGone, a.failure = false, false, false, nil
	if a.liveBy.IsZero() || a.tries == 0 {
		a.liveBy = time.Now().Add(a.spec.LiveTimeout)
	}
	if s.good == nil {
		s.wanted = a.spec
	}
	keeper, serving := s.keeper, s.live() != nil
	ctx, cancel := context.WithCancelCause(s.running)
	a.cancel = cancel
	s.helpers.Go(func() {
		defer cancel(nil)
		err := s.launch(ctx, keeper, a, serving)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		s.post(func() { s.launched(a, err) })
	})
}

// launch runs in a helper: it reads what plan set, and changes state only through the inbox.
func (s *Supervisor) launch(ctx context.Context, keeper Keeper, a *attempt, serving bool) error {
	p := a.process
	if a.mode == Hot && a.parent != nil {
		if err := s.preflight(ctx, keeper, a.parent); err != nil {
			return err
		}
	}
	sum, err := writeBootstrap(a.spec, p.launch())
	if err != nil {
		return err
	}
	if serving && a.spec.Validation != nil && a.tries == 0 && !a.sideBySide && !a.guard {
		if err := s.validate(ctx, keeper, a.spec, p.launch()); err != nil {
			return err
		}
	}
	command, err := a.spec.Command(p.launch())
	if err != nil {
		return fmt.Errorf("build the command line of epoch %d: %w", p.Number, err)
	}
	if err := s.call(ctx, func() { s.starting(a, command, sum) }); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// Not cut short by the attempt's end: whether the process exists must be known.
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	pid, err := keeper.Start(starting, StartSpec{ID: p.ID, Number: p.Number, RestartEpoch: p.RestartEpoch,
		Lineage: p.Lineage, HotRestart: p.hot, Command: command, Note: a.note})
	cancel()
	if err != nil && a.mode == Hot {
		sleep(ctx, parentNews) // if it is because the parent died, its exit is on its way
	}
	if err != nil {
		return fmt.Errorf("start epoch %d: %w", p.Number, err)
	}
	s.post(func() { s.startedAs(p, pid) })
	return s.awaitLive(ctx, a, serving)
}

// writeBootstrap writes an epoch's file and returns the sum of what it holds.
func writeBootstrap(spec *Spec, launch Launch) (sum string, err error) {
	content, err := spec.Bootstrap(launch)
	if err != nil {
		return "", fmt.Errorf("build the bootstrap of epoch %d: %w", launch.Number, err)
	}
	if err := replaceFile(launch.BootstrapPath, content); err != nil {
		return "", fmt.Errorf("write the bootstrap of epoch %d: %w", launch.Number, err)
	}
	return sumOf(content), nil
}

// sumOf tells one bootstrap from another: hexadecimal SHA-256.
func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// replaceFile writes a file of a runtime folder: whole or not at all. It need not outlive the machine, so that nobody waits for a disk.
func replaceFile(path string, content []byte) (err error) {
	// Envoy's user reads it through the folder's group, which only a file that is made in the folder has.
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	_, err = file.Write(content)
	if err = errors.Join(err, file.Chmod(0o640), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// starting makes the process one of ours, before the keeper knows it: its exit may be told before its start.
func (s *Supervisor) starting(a *attempt, command Command, sum string) {
	if s.attempt != a || a.failure != nil {
		return
	}
	a.started = true
	a.process.Started, a.process.command, a.process.sum = time.Now(), command, sum
	if a.tries == 0 { // validation is not part of live_timeout
		a.liveBy = a.process.Started.Add(a.spec.LiveTimeout)
	}
	a.note = noteOf(a.process)
	s.processes = append(s.processes, a.process)
}

func (s *Supervisor) startedAs(p *process, pid int) {
	if p.PID != 0 {
		return // its exit was told first
	}
	p.PID = pid
	s.event(condition.KindEpochStarted, p, fmt.Sprintf("epoch %d started (pid %d, %s): %s", p.Number, pid, p.Mode, p.Reason), nil)
}

// awaitLive waits until the admin says that the right epoch serves.
func (s *Supervisor) awaitLive(ctx context.Context, a *attempt, serving bool) error {
	p := a.process
	begun, hinted := time.Now(), time.Time{}
	handshake := handshakeTimeout
	if !serving {
		handshake = hurriedHandshake
	}
	handshakeBy := begun.Add(min(handshake, a.spec.LiveTimeout))
	said, answered := "its admin interface never answered", false
	for {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		state, err := p.admin.State(asking)
		cancel()
		now := time.Now()
		switch {
		case err == nil && (state.RestartEpoch == p.RestartEpoch || state.RestartEpoch == OwnAddress || !state.Live()):
			if state.Live() {
				return nil
			}
			said = "it says " + state.Server
			if !answered {
				answered = true
				s.post(func() { a.answered = true })
			}
		case !answered && a.mode == Hot && now.After(handshakeBy):
			return fmt.Errorf("%w (%s)", errHandshake, handshakeBy.Sub(begun))
		}
		if now.After(a.liveBy) {
			return fmt.Errorf("not live within %s (live_timeout): %s", a.spec.LiveTimeout, said)
		}
		pause := pollFast
		switch {
		case now.Sub(hinted) < hintedFor:
			pause = pollHinted
		case now.Sub(begun) > pollFastFor:
			pause = pollSlow
		}
		select {
		case <-time.After(pause):
		case <-s.hints:
			hinted = time.Now()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// launched takes the outcome of a helper.
func (s *Supervisor) launched(a *attempt, err error) {
	switch {
	case s.attempt != a:
	case err == nil:
		s.commit(a)
	default:
		s.fail(a, err)
	}
}

// fail ends the attempt's process, if it runs, and concludes once it has exited.
func (s *Supervisor) fail(a *attempt, err error) {
	if a.failure != nil {
		return
	}
	if s.keeper == nil { // whether it lives will be known when there is one again
		s.requeue(a)
		return
	}
	a.failure = err
	if !a.started || !a.process.alive() {
		s.conclude(a)
		return
	}
	if p := a.process; p.PID == 0 { // the keeper has not started it, or does not know whether it has
		_ = s.ask(func(ctx context.Context, k Keeper) error { return k.Signal(ctx, p.ID, syscall.SIGKILL) })
		s.remove(p)
		s.conclude(a)
		return
	}
	s.signal(a.process, syscall.SIGKILL, err.Error())
	s.after(killTimeout, func() {
		if s.attempt == a && a.failure != nil && a.process.alive() {
			s.lingers(a.process)
			s.conclude(a)
		}
	})
}

// lingers makes a process that does not end on SIGKILL one that is only waited for.
func (s *Supervisor) lingers(p *process) {
	p.Phase, p.child = Draining, "side"
	p.Ends = time.Now()
}

// removeBootstrap removes an epoch's file, unless another living epoch has the same number, or it may be what is known to work.
func (s *Supervisor) removeBootstrap(path string) {
	for _, m := range s.guard.mourned {
		if m.bootstrap == path {
			return
		}
	}
	for _, p := range s.processes {
		if p.BootstrapPath == path {
			return
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("the file of an ended epoch stays", "error", err)
	}
}
