// Package agent composes the parts of Outrider: it decides the order of start and stop, turns
// configuration into what each part needs, and makes a reload one transaction. It knows no detail
// of any part.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/bus"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/driver"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/mesh"
	"outrider.org/outrider/agent/neighbour"
	"outrider.org/outrider/agent/status"
	"outrider.org/outrider/agent/systemd"
	"outrider.org/outrider/agent/xds"
)

// Options of one run of the agent.
type Options struct {
	Config  config.Options
	Version string
	Output  io.Writer // of the log, where it does not go to the journal
}

// Agent is one run of outriderd. Its fields are set before its parts run and are constant from then
// on; what changes is behind a part's own lock, or atomic.
type Agent struct {
	options Options
	started time.Time
	log     *slog.Logger
	logs    logs
	level   *slog.LevelVar
	board   *condition.Board

	lockFile   *os.File
	keeper     *driver.Link
	supervisor *epoch.Supervisor
	proxy      *proxy
	reloader   *reloader
	maker      *specMaker
	levels     *levelSetter
	discovery  *discovery.Server
	meshWatch  *mesh.Watch
	meshPorts  *mesh.Ports
	xds        *xds.Server
	xdsSockets *mesh.Sockets
	identity   *identity.Manager
	sds        *xds.Server // serves the secrets of identity
	sdsSockets *mesh.Sockets
	status     *status.Server // nil: off
	view       *status.View
	viewPort   *viewPort
	api        *api.Server
	presence   *neighbour.Presence // for other agents
	bus        *bus.Server         // nil: off
	watched    *configWatch        // nil: off

	binary   atomic.Pointer[envoy.Binary] // inspected last
	serving  atomic.Pointer[envoy.Binary] // of the configuration in force; nil before the first
	detach   context.CancelFunc           // ends the agent; Envoy goes on serving
	stopping atomic.Bool
	kept     atomic.Bool            // Envoy is kept: systemd restarts the agent
	awaited  atomic.Pointer[string] // what the start waits for, in words; nil: nothing
	quit     chan struct{}          // an orderly stop is wanted
}

// part is a long-running part of the agent.
type part interface {
	Name() string
	Run(ctx context.Context) error
}

// Run runs the agent until it is told to stop by a signal or a request, or cannot go on. An
// *ExitError says with which code the program is to end. When ctx ends Envoy goes on serving, as
// after a crash; only a stop ends it.
func Run(ctx context.Context, options Options) (err error) {
	a := &Agent{options: options, started: time.Now(), level: &slog.LevelVar{}, board: condition.NewBoard(), quit: make(chan struct{}, 1)}
	a.log = slog.New(newLogHandler(options.Output, "auto", a.level))
	catching := sync.OnceValue(catchSignals)
	// beside the configuration: Go changes the masks of threads, one signal after the other
	go catching()
	defer func() { catching().stop() }()
	notifier := systemd.New(systemd.Options{Environment: options.environment(), Beat: a.beat, Logger: a.logOf("systemd")})
	defer func() { farewell(notifier, err) }()
	loaded, err := config.Load(options.Config)
	if err != nil {
		return exit(ExitConfiguration, err)
	}
	a.level.Set(slogLevel(loaded.Config.Log.Level))
	if a.logs, err = openLog(options, loaded.Config.Log.Format, a.level); err != nil {
		return exit(ExitConfiguration, err)
	}
	defer a.logs.close()
	a.log = a.logs.agent
	if _, err := envoy.Find(loaded.Config.Envoy.Binary); err != nil {
		return exit(ExitNoProgram, err)
	}
	if err := a.prepare(loaded.Config); err != nil {
		return err
	}
	defer a.release()

	signals := catching() // from here on none is deadly
	ctx, a.detach = context.WithCancel(ctx)
	defer a.detach()
	if err := a.compose(ctx, loaded); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	run := func(p part) {
		group.Go(func() error {
			if err := p.Run(ctx); err != nil {
				return fmt.Errorf("%s: %w", p.Name(), err)
			}
			return nil
		})
	}
	group.Go(func() error { return a.obey(ctx, signals) })
	events := &eventLog{a.board, a.logOf("agent")}
	for _, p := range []part{notifier, a.keeper, a.reloader, a.api, events} {
		run(p)
	}
	group.Go(func() error {
		defer a.detach() // Envoy has ended as it was told to: so do all
		return a.supervisor.Run(ctx, a.keeper.Get())
	})
	group.Go(func() error {
		homes := &mesh.Namespaces{Supervisor: a.supervisor, Discovery: a.discovery}
		if a.supervisor.Adopted(ctx) != nil {
			return nil //nolint:nilerr // the agent ends
		}
		// The supervisor has adopted what an earlier agent left.
		homes.Update()      // before the mesh is served
		a.viewPort.update() // before the admin view listens
		for _, p := range append(a.parts(), homes, &statusNotifier{backend{a}, notifier}) {
			run(p)
		}
		return a.begin(ctx)
	})
	err = group.Wait()
	switch {
	case errors.Is(err, epoch.ErrGaveUp):
		a.keeper.Shutdown()
		return exitf(ExitGaveUp, "%w", err)
	case err != nil:
		if _, ok := errors.AsType[*ExitError](err); ok {
			a.keeper.ShutdownIfIdle()
			return err
		}
		return &ExitError{Code: ExitInternal, Err: err}
	case a.kept.Load():
		a.log.Info("ended for a restart; Envoy goes on serving")
	case a.stopping.Load():
		a.keeper.Shutdown()
		a.tidy()
	}
	return nil
}

// parts are the parts that run once the supervisor knows the epochs of an earlier agent.
func (a *Agent) parts() []part {
	parts := []part{a.identity, a.sdsSockets, a.discovery, a.xdsSockets, a.view, a.viewPort, a.meshWatch, a.meshPorts}
	if a.status != nil {
		parts = append(parts, a.status)
	}
	if a.bus != nil {
		parts = append(parts, a.bus)
	}
	if a.watched != nil {
		parts = append(parts, a.watched)
	}
	return parts
}

// begin asks for the first epoch, or for none if what was adopted is what is wanted.
func (a *Agent) begin(ctx context.Context) error {
	current := a.reloader.InForce()
	files := a.maker.files(ctx, current)
	if a.watched != nil {
		a.watched.set(current, files)
	}
	i := current.Config.Identity
	if i.Provider == "files" {
		files = append(slices.Clone(files), i.CertFile, i.KeyFile, i.RootCAFile)
	}
	if a.awaitFiles(ctx, current.Config, files) != nil {
		return nil //nolint:nilerr // the agent ends
	}
	select { // a neighbour that starts at the same time must be able to ask
	case <-a.api.Ready():
	case <-ctx.Done():
		return nil
	}
	if a.awaitPorts(ctx) != nil {
		return nil //nolint:nilerr // the agent ends
	}
	start := &reload{reason: "start", ifChanged: true, first: true}
	result, err := a.reloader.Reload(ctx, start)
	refused := err == nil && ctx.Err() == nil && result.Outcome == api.OutcomeRefused
	if refused && start.err != nil && !a.serves(ctx) {
		return start.err // no Envoy can be made of this configuration, and none is there to go on
	}
	if !refused { // else one was started and failed: the guard goes on, or gives up
		a.readAgain(ctx, current)
	}
	select {
	case <-time.After(settleAfter):
		debug.SetGCPercent(idleGCPercent)
		debug.FreeOSMemory()
	case <-ctx.Done():
	}
	return nil
}

const (
	// idleGCPercent is Go's GC percentage after the start. The agent then idles for days, so a
	// small heap is worth more than a little CPU time.
	idleGCPercent = 40

	// settleAfter is the time after the start when memory that only the start needed is returned.
	settleAfter = 2 * time.Second
)

// lookAgain is how often it is looked whether there is still something that may serve: an attempt
// can end without an epoch to show for it.
const lookAgain = time.Second

// serves waits as long as what is known to work is being brought back, and tells whether an Envoy
// serves, or the agent ends.
func (a *Agent) serves(ctx context.Context) bool {
	for {
		changed := a.supervisor.Changed()
		if _, live := a.proxy.liveEpoch(); live || ctx.Err() != nil {
			return true
		}
		if !a.supervisor.Recovers() {
			return ctx.Err() != nil
		}
		select {
		case <-changed:
		case <-time.After(lookAgain):
		case <-ctx.Done():
		}
	}
}

// readAgain asks for a reload if the configuration changed after it was read and before it was
// watched.
func (a *Agent) readAgain(ctx context.Context, started *config.Loaded) {
	if a.watched == nil {
		return
	}
	if now, err := config.Load(a.options.Config); err != nil || now.Hash != started.Hash {
		// Its outcome is logged, and a condition stands if it was refused.
		_, _ = a.reloader.Reload(ctx, &reload{reason: "changed while outriderd started", ifChanged: true})
	}
}

// environment looks up variables.
func (o Options) environment() func(string) string {
	if o.Config.Environment != nil {
		return o.Config.Environment
	}
	return os.Getenv
}

// answerPatience is how long systemd may take to answer before the journal says what the stop waits
// for.
const answerPatience = 500 * time.Millisecond

// restarted is whether systemd ends the agent to start it again at once, by the job of its unit.
// What cannot be known is a stop.
func (a *Agent) restarted(ctx context.Context) bool {
	log := a.logOf("systemd")
	late := time.AfterFunc(answerPatience, func() {
		log.Warn("waiting for systemd to say whether this is a stop or a restart; Envoy serves meanwhile")
	})
	defer late.Stop()
	job, err := systemd.Manager{}.Job(ctx)
	if err != nil && ctx.Err() == nil {
		log.Warn("cannot find out whether this is a stop or a restart: stopping, Envoy ends too", "error", err)
	}
	return job == systemd.Restart
}

// stop ends Envoy in order, then everything; a second call aborts.
func (a *Agent) stop(ctx context.Context, why string) {
	again := a.stopping.Swap(true)
	settings := a.reloader.InForce().Config.Envoy
	if !again && a.options.Config.InUnit && a.restarted(ctx) {
		a.kept.Store(true)
		a.detach()
		return
	}
	if again {
		a.log.Warn("told to stop again: aborting what still drains", "by", why)
	} else {
		a.log.Info("stopping", "by", why)
	}
	if err := a.supervisor.Stop(ctx, stopOptions(settings, again)); err != nil && ctx.Err() == nil {
		a.log.Error("stop", "error", err)
	}
}
