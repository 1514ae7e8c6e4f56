package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/journal"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/systemd"
)

// serve runs the program until ctx ends, or until SIGTERM or SIGINT arrives.
func serve(ctx context.Context, options config.Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// The memory contains private keys: other processes of this user must not read it, and no core
	// dump must contain it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set PR_SET_DUMPABLE to 0: %w", err)
	}
	loaded, err := config.LoadDiscoveryd(options)
	if err != nil {
		return err
	}
	level := &slog.LevelVar{}
	setLevel(level, loaded.Config.Log.Level)
	logs, err := journal.OpenLogs(journal.LogOptions{Output: os.Stderr,
		Format: loaded.Config.Log.Format, Level: level, EnvoyLevel: level,
		Environment: os.Getenv, Program: "outrider-discoveryd"})
	if err != nil {
		return err
	}
	defer logs.Close()
	// The Kubernetes client library logs through klog.
	klog.SetSlogLogger(logs.Agent.With("component", "kubernetes"))
	b := &base{options: options, level: level, log: logs.Agent, logs: logs,
		board: condition.NewRegistry()}
	p, err := compose(b, loaded)
	if err != nil {
		return err
	}
	p.notifier.SetState(systemd.StateStarting, "starting")
	err = p.run(ctx)
	p.notifier.NotifyExit(err)
	return err
}

// setLevel sets the log level to a value of the key log.level. It ignores an invalid value.
func setLevel(level *slog.LevelVar, text string) {
	var l slog.Level
	if l.UnmarshalText([]byte(text)) == nil {
		level.Set(l)
	}
}

// drainTime is the time over which a stopping server spreads the ends of its streams, so that not
// all clients of a fleet reconnect to other servers at once. It is less than TimeoutStopSec= of the
// unit.
const drainTime = 10 * time.Second

// run starts the components in order: the sources; the discovery server once the states of the
// sources are complete, or after startWait; the listeners. When ctx ends, it drains the streams
// before it ends the components.
func (p *program) run(ctx context.Context) error {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group := lifecycle.NewGroup(running)
	abandon := context.AfterFunc(ctx, func() {
		p.reloader.stopping.Store(true)
		p.notifier.SetState(systemd.StateStopping, "clients move to other servers")
		p.streams.Drain(running, drainTime)
		end()
	})
	defer abandon()
	group.Start(p.notifier, p.reloader, p.control, p.events, p.certificates, p.files, p.monitoring,
		p.reports)
	for _, s := range p.sources {
		group.Start(s)
	}
	if p.registration != nil {
		group.Start(p.registration)
	}
	group.Start(p.recorder)
	if group.Await(p.recorder) == nil {
		group.Start(p.discovery)
	}
	if group.Await(p.discovery) == nil {
		group.Start(p.listeners...)
	}
	if group.Await(p.listeners...) == nil {
		p.reloader.ready()
		if p.registration != nil {
			p.registration.StartServing()
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("outrider-discoveryd exits: %w", err)
	}
	return nil
}
