package epoch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"outrider.org/outrider/agent/envoy"
)

// prepare writes and validates the bootstrap, and checks the parent, before a process is started.
type prepare struct {
	id       string
	spec     *Spec
	launch   LaunchInput
	validate bool
	// Only for a hot restart: ID and admin address of the parent.
	parent      string
	parentAdmin string
}

func (a prepare) run(x *executor) {
	x.job(startJob(a.id), func(ctx context.Context) {
		e := prepared{id: a.id}
		e.command, e.sum, e.err = a.do(ctx, x)
		x.post(e)
	})
}

func (a prepare) do(ctx context.Context, x *executor) (command Command, sum string, err error) {
	if a.parent != "" {
		if err := a.preflight(ctx, x); err != nil {
			return Command{}, "", err
		}
	}
	number := a.launch.Number
	content, err := a.spec.Bootstrap(a.launch)
	if err != nil {
		return Command{}, "", fmt.Errorf("build the bootstrap of epoch %d: %w", number, err)
	}
	if err := x.write(ctx, a.launch.BootstrapPath, content); err != nil {
		return Command{}, "", fmt.Errorf("write the bootstrap of epoch %d: %w", number, err)
	}
	if a.validate {
		if err := x.validate(ctx, a.spec, a.launch); err != nil {
			return Command{}, "", err
		}
	}
	command, err = commandOf(a.spec, a.launch)
	return command, sumOf(content), err
}

// preflight checks that the parent of a hot restart responds. A new Envoy would wait without limit
// for a parent that hangs. If the parent resumed later, it would execute messages that are still
// queued, such as the request to terminate.
func (a prepare) preflight(ctx context.Context, x *executor) error {
	err := x.state(ctx, a.parentAdmin, preflightHurry)
	if !hangs(err) || ctx.Err() != nil {
		return nil //nolint:nilerr // any other error is an answer, too
	}
	if err := x.wakeUp(ctx, a.parent); err != nil {
		return err
	}
	if err := x.state(ctx, a.parentAdmin, preflightTimeout); hangs(err) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return nil
}

// state requests the state of an epoch, and returns the error of the request.
func (x *executor) state(ctx context.Context, admin string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := x.options.Admin(admin).State(ctx)
	return err
}

// wakeUp sends SIGCONT to a process, which has no effect unless the process was stopped.
func (x *executor) wakeUp(ctx context.Context, id string) error {
	err := x.withKeeper(ctx, func(ctx context.Context, k Keeper) error {
		return k.Signal(ctx, id, syscall.SIGCONT)
	})
	if err != nil {
		return fmt.Errorf("resume the stopped Envoy (SIGCONT): %w", err)
	}
	return nil
}

// write queues the writing of a file behind all earlier actions on files, and waits until the file
// is written.
func (x *executor) write(ctx context.Context, path string, content []byte) error {
	done := make(chan error, 1)
	x.files.add(func(context.Context) {
		if err := ctx.Err(); err != nil {
			done <- err
			return
		}
		done <- replaceFile(path, content)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// replaceFile writes a file in a runtime directory atomically. It does not call fsync, because the
// file need not survive a reboot.
func replaceFile(path string, content []byte) (err error) {
	// Envoy's user may read the file as a member of its group, which new files inherit from the
	// folder.
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

// sumOf returns the SHA-256 checksum of a bootstrap in hexadecimal.
func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// validate has Envoy validate the bootstrap. This detects syntax errors and routes to unknown
// clusters, but not a port in use.
func (x *executor) validate(ctx context.Context, spec *Spec, launch LaunchInput) error {
	command, err := spec.ValidateCommand(launch)
	if err != nil {
		return fmt.Errorf("build the command line that validates epoch %d: %w", launch.Number, err)
	}
	x.mu.Lock()
	current := x.keeper
	x.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	stdout, stderr, exit, err := runCommand(ctx, current, command.Path, command.Args)
	if err != nil {
		return fmt.Errorf("validate the bootstrap of epoch %d: %w", launch.Number, err)
	}
	if exit != 0 {
		return fmt.Errorf("Envoy does not accept %s: %s", launch.BootstrapPath,
			envoy.ValidationError(append(stdout, stderr...)))
	}
	return nil
}

// awaitLive polls a starting epoch until its admin interface reports that an epoch with the
// expected number serves.
type awaitLive struct {
	id           string
	admin        string
	restartEpoch int
	hot          bool
	liveBy       time.Time
	liveTimeout  time.Duration // only for the error message
	// limit of the handshake: if a hot restart has not answered by then, it hangs
	handshake time.Duration
}

func (a awaitLive) run(x *executor) {
	x.job(startJob(a.id), func(ctx context.Context) { x.post(polled{a.id, a.poll(ctx, x)}) })
}

func (a awaitLive) poll(ctx context.Context, x *executor) error {
	admin, begun := x.options.Admin(a.admin), time.Now()
	said, hasAnswered := "its admin interface never answered", false
	for {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		state, err := admin.State(asking)
		cancel()
		now := time.Now()
		switch {
		case err == nil && (state.RestartEpoch == a.restartEpoch ||
			state.RestartEpoch == RestartEpochNotRead || !state.Live()):
			if state.Live() {
				return nil
			}
			said = "it says " + state.Server
			if !hasAnswered {
				hasAnswered = true
				x.post(answered{a.id})
			}
		case !hasAnswered && a.hot && now.Sub(begun) > a.handshake:
			return fmt.Errorf("%w for more than %s", errHandshake, a.handshake)
		}
		if now.After(a.liveBy) {
			return fmt.Errorf("Envoy was not live within %s (live_timeout): %s", a.liveTimeout,
				said)
		}
		pause := pollFast
		if now.Sub(begun) > pollFastFor {
			pause = pollSlow
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}
