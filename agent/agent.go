// Package agent wires the parts of Outrider together. It orders start and stop, derives the
// settings of each part from the configuration, and runs a reload as one transaction. Details of a
// part stay in the part's own package.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/diskspace"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/exposure"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/journal"
	"outrider.org/outrider/agent/mesh"
	"outrider.org/outrider/agent/part"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/status"
	"outrider.org/outrider/agent/sts"
	"outrider.org/outrider/agent/systemd"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
)

// Options configures one run of the agent.
type Options struct {
	Config  config.Options
	Version string
	Output  io.Writer // receives the log unless it goes to the journal
}

// Agent is one run of outriderd. Its fields are set before the parts run and constant afterwards,
// except for atomics and state behind a part's own lock.
type Agent struct {
	options Options
	started time.Time
	log     *slog.Logger
	logs    journal.Logs
	level   *slog.LevelVar
	board   *condition.Board

	lockFile   *os.File
	keeper     *epoch.Link
	supervisor *epoch.Supervisor
	proxy      *epoch.Proxy
	reloader   *reloader
	held       heldConfigs
	maker      *specMaker
	levels     *epoch.LogLevels
	discovery  *discovery.Server
	meshWatch  *watch.Watcher
	meshPorts  *ports.Tracker
	unbound    *ports.Unbound
	xds        *xds.Server
	relay      *relay.Server
	health     *health.Checker
	xdsSwitch  *xds.Switch // between xds and relay
	xdsSockets *xds.Sockets
	identity   *identity.Manager
	seal       []byte      // credential; nil if there is none
	sds        *xds.Server // serves the secrets of identity
	sdsSockets *xds.Sockets
	sts        *sts.Server    // nil if disabled
	dns        *dns.Server    // nil if disabled
	status     *status.Server // nil if disabled
	view       *status.View
	backend    *backend // behind api, bus and status
	api        *api.Server
	presence   *hostconflict.Presence // read by other agents on this host
	watched    *configWatch           // nil if disabled
	capture    *capture.Follower
	exposure   *exposure.Checker
	endpoints  *endpoints.Tracker
	presented  *presented
	diskSpace  *diskspace.Checker
	optional   []part.Part // those of them that are not disabled

	grpcNode  atomic.Pointer[corev3.Node]    // of applications; nil: none are served
	serving   atomic.Pointer[envoy.Binary]   // in force; nil until a reload sets it
	bootstrap atomic.Pointer[firstBootstrap] // nil unless the first epoch can use it
	detach    context.CancelFunc             // ends the agent; Envoy continues serving
	stopping  atomic.Bool
	restarts  atomic.Bool   // systemd restarts the agent; Envoy continues serving
	quit      chan struct{} // receives requests for an orderly stop
}

// Run runs the agent until a signal or a request stops it, or an error ends it. An *ExitError
// carries the exit code of the program. When ctx ends, Envoy continues serving, as after a crash;
// only a stop ends Envoy.
func Run(ctx context.Context, options Options) (err error) {
	options.Config.Unreadable = unreadable
	a := &Agent{options: options, started: time.Now(), level: &slog.LevelVar{},
		board: condition.NewBoard(), quit: make(chan struct{}, 1)}
	// Memory has private keys: no other process of this user may read it, and no core is dumped.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return exit(ExitInternal, fmt.Errorf("deny tracing: %w", err))
	}
	a.log = slog.New(journal.NewStreamHandler(options.Output, "auto", a.level))
	catching := sync.OnceValue(catchSignals)
	// Runs while the configuration loads: Go changes the signal masks of its threads one signal at
	// a time.
	go catching()
	defer func() { catching().stop() }()
	notifier := systemd.New(systemd.Options{Environment: options.environment(), Ping: a.beat,
		Logger: a.logOf("systemd")})
	defer func() { notifier.End(err) }()
	loaded, err := config.Load(options.Config)
	if err != nil {
		return exit(ExitConfiguration, err)
	}
	if err := a.openLogs(loaded.Config.Log); err != nil {
		return exit(ExitConfiguration, err)
	}
	defer a.logs.Close()
	if _, err := envoy.Find(loaded.Config.Envoy.Binary); err != nil && loaded.Config.Envoy.Enabled {
		return exit(ExitNoProgram, err)
	}
	if err := a.prepare(loaded.Config); err != nil {
		return err
	}
	defer a.release()

	signals := catching() // the signals no longer end the process
	ctx, a.detach = context.WithCancel(ctx)
	defer a.detach()
	connected, err := a.compose(ctx, loaded)
	if err != nil {
		return err
	}
	err = a.runParts(ctx, connected, notifier, signals)
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
	case a.restarts.Load():
		a.log.Info("ended for a restart; Envoy continues serving")
	case a.stopping.Load():
		a.keeper.Shutdown()
		a.endCapture()
		a.tidy()
	}
	return nil
}

// runParts starts the parts in order and requests the first epoch. It returns when a part or ctx
// has ended and all parts have stopped in reverse order: the reloader before the private socket,
// whose requests wait for it. connected is the result of openKeeper.
func (a *Agent) runParts(
	ctx context.Context, connected <-chan error, notifier *systemd.Notifier, signals signals,
) error {
	group := part.NewGroup(ctx)
	group.Start(a.identity, a.sdsSockets) // certificates are read while a keeper starts
	err := <-connected
	if err == nil && !a.reloader.InForce().Config.Envoy.Enabled {
		err = a.endEnvoys(ctx)
	}
	if err != nil {
		group.Fail(err)
		return group.Wait()
	}
	supervisor := supervision{a.supervisor, a.keeper}
	group.Start(notifier, &signalHandler{Agent: a, signals: signals}, a.keeper, a.api, a.reloader,
		&journal.Events{Board: a.board, Log: a.logOf("agent"), Logs: a.logs, Epochs: a.proxy,
			Elsewhere: []string{conditionRefused, discovery.ConditionProblems,
				epoch.ConditionGaveUp, mesh.ConditionRefused(""), endpoints.ConditionFailing}},
		supervisor)
	// What follows depends on the epochs of an earlier agent.
	if group.Await(supervisor) == nil {
		group.Start(a.discovery, a.relay, a.xdsSockets, a.view, a.meshWatch, a.meshPorts, a.unbound,
			a.exposure, a.endpoints, a.diskSpace, a.health)
		group.Start(a.optional...)
		// Queries are redirected for as long as a.capture runs, which has to stop before a.dns.
		group.Start(a.capture, &keyRights{agent: a}, a.presented)
		group.Start(&systemd.Reporter{Notifier: notifier, Board: a.board, Agent: a.backend})
		// Another agent that starts at the same time must be able to read the claims.
		if group.Await(a.api) == nil {
			if err := a.begin(group.Context()); err != nil {
				group.Fail(err)
			}
		}
	}
	return group.Wait()
}

// supervision runs the supervisor with the keeper to which the link is connected.
type supervision struct {
	*epoch.Supervisor
	link *epoch.Link
}

// Run implements part.Part.
func (s supervision) Run(ctx context.Context) error { return s.Supervisor.Run(ctx, s.link.Get()) }

// environment returns the function that looks up environment variables.
func (o Options) environment() func(string) string {
	if o.Config.Environment != nil {
		return o.Config.Environment
	}
	return os.Getenv
}

// openLogs opens the logs of a [log] table.
func (a *Agent) openLogs(c config.Log) (err error) {
	if err := a.level.UnmarshalText([]byte(c.Level)); err != nil {
		return err
	}
	a.logs, err = journal.OpenLogs(journal.LogOptions{Output: a.options.Output, Format: c.Format,
		Level: a.level, EnvoyLevel: envoy.LevelTrace, Environment: a.options.environment(),
		Instance: a.options.Config.Instance})
	if err == nil {
		a.log = a.logs.Agent
	}
	return err
}

// logOf returns the logger of a part, which adds the field component (OUTRIDER_COMPONENT= in the
// journal). Package agent itself logs as "agent".
func (a *Agent) logOf(part string) *slog.Logger { return a.log.With("component", part) }

// beat returns once the goroutines of the reloader and the supervisor have run. It feeds the
// watchdog.
func (a *Agent) beat(ctx context.Context) error {
	if err := a.reloader.Ping(ctx); err != nil {
		return fmt.Errorf("reloader: %w", err)
	}
	if err := a.supervisor.Ping(ctx); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	return nil
}
