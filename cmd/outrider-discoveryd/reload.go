package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/systemd"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/ca"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/record"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// Codes of conditions, with the same meaning as in outriderd.
const (
	conditionRefused = "configuration-refused"
	conditionPending = "restart-pending"
)

// configDelay is how long the watcher waits for further events after a change of configuration
// files.
const configDelay = 500 * time.Millisecond

// statusInterval is the interval between updates of systemd's STATUS= and of the sources'
// conditions.
const statusInterval = time.Second

// reloader applies changes of the configuration, after SIGHUP and when its files change. Its main
// loop also responds to the pings of the watchdog.
type reloader struct {
	lifecycle.Readiness
	base      *base
	running   *config.DiscoverydLoaded // current configuration
	server    *discovery.Server
	identity  *serverIdentity
	notifier  *systemd.Notifier
	sources   []source.Source
	recorder  *record.Recorder
	states    *sourceStates
	streams   *xds.Server
	clients   *auth.Authenticator
	authority *ca.Server // certificate authority; nil: [ca] is off
	watcher   *watch.Watcher
	requests  chan chan error // calls of Reload: each value receives the result of the call
	pings     chan struct{}
	serving   atomic.Bool
	stopping  atomic.Bool   // the program stops, and asks its clients to reconnect elsewhere
	announced chan struct{} // receives a value when ready is called
}

func newReloader(b *base, loaded *config.DiscoverydLoaded, server *discovery.Server,
	identity *serverIdentity) *reloader {
	return &reloader{base: b, running: loaded, server: server, identity: identity,
		watcher: watch.New(watch.Options{Delays: watch.Delays{Debounce: configDelay,
			MaxDelay: 10 * configDelay}, Suffixes: []string{".toml"}, Logger: b.logOf("watch")}),
		requests: make(chan chan error), pings: make(chan struct{}), announced: make(chan struct{}, 1)}
}

// Name returns the name of the component.
func (r *reloader) Name() string { return "reloader" }

// Run applies changes of the configuration until ctx ends.
func (r *reloader) Run(ctx context.Context) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	if err := r.watcher.SetPaths(slices.Concat(r.running.Files, r.running.Dirs)); err != nil {
		return err
	}
	watching := make(chan error, 1)
	go func() { watching <- r.watcher.Run(ctx) }()
	r.MarkReady()
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	for {
		select {
		case <-hangups:
			_ = r.reload(true) // if the configuration is refused, reload raises a condition
		case result := <-r.requests:
			result <- r.reload(true)
		case <-r.watcher.Changes():
			_ = r.reload(false)
		case <-r.announced:
			r.serving.Store(true)
			r.report()
			r.base.log.Info("serving xDS to clients", "version", version)
		case <-tick.C:
			r.report()
		case <-r.pings:
		case <-ctx.Done():
			return <-watching
		}
	}
}

// Reload reloads the configuration as SIGHUP does, and then makes the discovery server read all its
// files again. It returns when both are done. The error is the reason for a refusal.
func (r *reloader) Reload(ctx context.Context) error {
	result := make(chan error, 1)
	select {
	case r.requests <- result:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-result:
		if err != nil || !r.serving.Load() {
			return err
		}
		return r.server.Rescan(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// report updates the status in systemd: the number of clients, and the sources that cannot be
// reached.
func (r *reloader) report() {
	problems := r.states.observe(time.Now())
	if r.authority != nil {
		r.authority.CheckExpiry(time.Now())
	}
	if r.stopping.Load() {
		return
	}
	if !r.serving.Load() {
		r.notifier.SetState(systemd.StateStarting, strings.TrimSuffix("starting; "+problems, "; "))
		return
	}
	sentence := fmt.Sprintf("serving %d clients", r.streams.Stats().Streams)
	if why := r.server.ResourcesWithheldReason(); why != "" {
		sentence = "serving nothing: " + why
	}
	r.notifier.SetState(systemd.StateRunning, strings.TrimSuffix(sentence+"; "+problems, "; "))
}

// ready must be called once all listeners serve. It makes Run report that to systemd.
func (r *reloader) ready() { r.announced <- struct{}{} }

// readiness returns the reason why the server is not ready; nil: it is ready.
func (r *reloader) readiness() error {
	if r.stopping.Load() {
		return errors.New("stopping: clients move to other servers")
	}
	if !r.serving.Load() {
		return errors.New("the server is still starting")
	}
	if why := r.server.ResourcesWithheldReason(); why != "" {
		return errors.New(why)
	}
	return nil
}

// ping returns when the main loops of the reloader and the discovery server have responded.
func (r *reloader) ping(ctx context.Context) error {
	select {
	case r.pings <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !r.serving.Load() {
		return nil // the discovery server may not have started yet
	}
	return r.server.Ping(ctx)
}

// reload reads the configuration, and applies the changes that need no restart. If requested is
// set, it also sends refused resources to clients again, and accepts missing files and empty lists
// of sources. The error is the reason for a refusal.
func (r *reloader) reload(requested bool) error {
	if r.serving.Load() && !r.stopping.Load() {
		r.notifier.SetState(systemd.StateReloading, "reloading")
		defer r.report()
	}
	log := r.base.log
	next, err := config.LoadDiscoveryd(r.base.options)
	if err != nil {
		r.base.board.Raise(conditionRefused, condition.Error,
			"the configuration was refused, that in force stays: "+
				strings.Join(config.ErrorLines(err), "; "))
		return errors.New(strings.Join(config.ErrorLines(err), "\n"))
	}
	r.base.board.Clear(conditionRefused)
	if err := r.watcher.SetPaths(slices.Concat(next.Files, next.Dirs)); err != nil {
		log.Warn("cannot watch configuration files", "error", err)
	}
	applied := config.RetainDiscoverydRestartKeys(r.running.Config, next.Config)
	r.log(config.CompareDiscoveryd(r.running.Config, next.Config))
	if applied.TLS != r.running.Config.TLS && hasCertificate(applied.TLS) {
		r.identity.use(applied.TLS)
	}
	setLevel(r.base.level, applied.Log.Level)
	r.clients.Configure(authOf(applied))
	if r.authority != nil && applied.CA != r.running.Config.CA {
		r.authority.Configure(caOf(applied))
	}
	apply := r.server.Configure
	if requested {
		apply = r.server.Reload
		r.recorder.RemoveRetainedInputs()
		for _, s := range r.sources {
			if cautious, ok := s.(interface{ RemoveRetainedInputs() }); ok {
				// removes objects that are retained although the source's list is empty
				cautious.RemoveRetainedInputs()
			}
		}
	}
	if err := apply(settingsOf(applied)); err != nil {
		log.Error("cannot apply reloaded settings to discovery server", "error", err)
	}
	r.running = &config.DiscoverydLoaded{Config: applied, Files: next.Files, Dirs: next.Dirs,
		Positions: next.Positions, Hash: next.Hash}
	return nil
}

// log logs the changes of a reload. It raises a condition if some of them need a restart of the
// program, and otherwise clears it.
func (r *reloader) log(changes []config.Change) {
	var pending []string
	for _, change := range changes {
		level := slog.LevelInfo
		if change.Effect == config.Start {
			pending = append(pending, change.Key)
			level = slog.LevelWarn
		}
		r.base.log.Log(context.Background(), level, "configuration changed", "key", change.Key,
			"old", change.Old, "new", change.New, "effect", string(change.Effect))
	}
	if len(pending) == 0 {
		r.base.board.Clear(conditionPending)
		return
	}
	r.base.board.Raise(conditionPending, condition.Warning, fmt.Sprintf(
		"changes of %s wait for the next start", strings.Join(pending, ", ")))
}
