package epoch

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
)

// Short actions that reply to callers of the supervisor, update its conditions and events, or write
// to its log.
type (
	// reply returns the result of a call. It runs after all queued requests to the keeper and all
	// queued updates of conditions and events.
	reply struct {
		call   int
		answer answer
	}
	// announceWait notifies a caller that its request waits, until when, and why.
	announceWait struct {
		call  int
		until time.Time
		why   string
	}
	raise struct {
		code     string
		severity condition.Severity
		sentence string
	}
	clearCondition struct{ code string }
	publish        struct{ event condition.Event }
	logLine        struct {
		level   slog.Level
		message string
		args    []any
	}
)

func (a reply) run(x *executor) {
	x.ledger.add(func(context.Context) {
		x.notices.add(func(context.Context) {
			x.mu.Lock()
			c := x.callers[a.call]
			delete(x.callers, a.call)
			x.mu.Unlock()
			if c != nil {
				c.answer <- a.answer
			}
		})
	})
}

func (a announceWait) run(x *executor) {
	x.notices.add(func(context.Context) {
		if c := x.caller(a.call); c != nil && c.onWait != nil {
			c.onWait(a.until, a.why)
		}
	})
}

func (a raise) run(x *executor) {
	x.notices.add(func(context.Context) {
		x.options.Conditions.Raise(a.code, a.severity, a.sentence)
	})
}

func (a clearCondition) run(x *executor) {
	x.notices.add(func(context.Context) { x.options.Conditions.Clear(a.code) })
}

func (a publish) run(x *executor) {
	x.notices.add(func(context.Context) { x.options.Conditions.Publish(a.event) })
}

func (a logLine) run(x *executor) { x.logs(a.level, a.message, a.args...) }

// Short actions that send requests to the keeper or change files.
type (
	// launch makes the keeper create a process.
	launch struct {
		spec keeper.StartSpec
		hot  bool
	}
	sendSignal struct {
		id     string
		number int
		signal syscall.Signal
		why    string
	}
	storeNote struct {
		id     string
		number int
		note   json.RawMessage
	}
	forget            struct{ id string }
	clearInitializing struct{ lineage, number int }
	cleanUp           struct{}
	removeFile        struct{ path string }
)

func (a launch) run(x *executor) {
	x.ledger.add(func(ctx context.Context) {
		var process keeper.Process
		err := x.withKeeper(ctx, func(ctx context.Context, k Keeper) (err error) {
			process, err = k.Start(ctx, a.spec)
			return err
		})
		x.job(startJob(a.spec.ID), func(ctx context.Context) {
			if err != nil && a.hot {
				// the start may have failed because the parent exited: let the parent's exit event
				// arrive first
				sleep(ctx, parentNews)
			}
			x.post(launched{a.spec.ID, process.PID, err})
		})
	})
}

func (a sendSignal) run(x *executor) {
	args := []any{"epoch", a.number, "signal", unix.SignalName(a.signal)}
	x.logs(slog.LevelInfo, "sending signal to Envoy", append(args, "why", a.why)...)
	x.requestKeeper("cannot send signal to Envoy", args, func(ctx context.Context, k Keeper) error {
		return k.Signal(ctx, a.id, a.signal)
	})
}

func (a storeNote) run(x *executor) {
	x.requestKeeper("cannot store epoch state in keeper", []any{"epoch", a.number},
		func(ctx context.Context, k Keeper) error { return k.SetNote(ctx, a.id, a.note) })
}

func (a forget) run(x *executor) {
	x.requestKeeper("the keeper did not forget an ended process", []any{"id", a.id},
		func(ctx context.Context, k Keeper) error { return k.Forget(ctx, a.id) })
}

func (a clearInitializing) run(x *executor) {
	x.requestKeeper("cannot clear the flag of a failed start", []any{"epoch", a.number},
		func(ctx context.Context, k Keeper) error {
			_, err := k.ClearInitializingFlag(ctx, a.lineage)
			return err
		})
}

func (cleanUp) run(x *executor) {
	x.ledger.add(func(ctx context.Context) {
		x.post(cleanedUp{x.withKeeper(ctx, func(ctx context.Context, k Keeper) error {
			return k.RemoveEnvoyFiles(ctx)
		})})
	})
}

func (a removeFile) run(x *executor) {
	x.files.add(func(context.Context) {
		if err := os.Remove(a.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			x.logs(slog.LevelWarn, "cannot remove the file of an ended epoch", "error", err)
		}
	})
}

// cancelJob cancels a job.
type cancelJob struct{ name string }

func (a cancelJob) run(x *executor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if job := x.running[a.name]; job != nil {
		job.cancel()
	}
}

// Actions after a keeper was connected or lost.
type (
	listProcesses  struct{ adoption int }
	watchKeeper    struct{ adoption int }
	awaitProcesses struct {
		ids  []string
		pids []int
	}
)

func (a listProcesses) run(x *executor) {
	x.job("list", func(ctx context.Context) {
		var found []keeper.Process
		err := x.withKeeper(ctx, func(ctx context.Context, k Keeper) (err error) {
			found, err = k.Processes(ctx)
			return err
		})
		list := listed{adoption: a.adoption, err: err}
		for _, p := range found {
			list.found = append(list.found, x.foundProcess(p))
		}
		x.post(list)
	})
}

// exitOf returns a processExited event for a process that the keeper reports. The event's exit is
// nil if the process is alive.
func (x *executor) exitOf(p keeper.Process) processExited {
	e := processExited{id: p.ID, pid: p.PID, exit: p.Exit, lastLines: envoy.RedactLines(p.LastLines)}
	if e.exit != nil {
		e.cause = x.options.ExplainExit(e.exit.Code, e.exit.Signal, e.exit.CoreDump, e.lastLines)
	}
	return e
}

// run reports exits until the connection to the keeper is lost.
func (a watchKeeper) run(x *executor) {
	x.mu.Lock()
	current := x.keeper
	x.mu.Unlock()
	x.job("watch", func(ctx context.Context) {
		for {
			select {
			case p, open := <-current.Exits():
				if !open {
					x.post(keeperGone(a))
					return
				}
				x.post(x.exitOf(p))
			case <-current.Done():
				x.post(keeperGone(a))
				return
			case <-ctx.Done():
				return
			}
		}
	})
}

// run reports the first process that has ended.
func (a awaitProcesses) run(x *executor) {
	x.job(awaitJob, func(ctx context.Context) {
		ended := make(chan string)
		for i, pid := range a.pids {
			x.jobs.Go(func() {
				if !x.options.AwaitExit(ctx, pid) {
					return
				}
				select {
				case ended <- a.ids[i]:
				case <-ctx.Done():
				}
			})
		}
		select {
		case id := <-ended:
			x.post(processEnded{id})
		case <-ctx.Done():
		}
	})
}

type checkObstacle struct{}

func (checkObstacle) run(x *executor) {
	x.job("obstacle", func(context.Context) { x.post(obstacleChecked{x.options.StartObstacle()}) })
}
