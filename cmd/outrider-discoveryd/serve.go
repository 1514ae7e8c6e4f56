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
	"outrider.org/outrider/agent/part"
	"outrider.org/outrider/agent/systemd"
)

// serve runs the server until ctx ends or SIGTERM or SIGINT arrives.
func serve(ctx context.Context, options config.Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// The memory contains private keys: other processes of this user must not read it, and no core
	// must be dumped.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("deny tracing: %w", err)
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
	// client-go, which reads Kubernetes, logs through klog
	klog.SetSlogLogger(logs.Agent.With("component", "kubernetes"))
	b := &base{options: options, level: level, log: logs.Agent, logs: logs,
		board: condition.NewBoard()}
	p, err := compose(b, loaded)
	if err != nil {
		return err
	}
	p.notifier.Set(systemd.StateStarting, "starting")
	err = p.run(ctx)
	p.notifier.End(err)
	return err
}

// setLevel sets the log level to a valid value of [log] level.
func setLevel(level *slog.LevelVar, text string) {
	var l slog.Level
	if l.UnmarshalText([]byte(text)) == nil {
		level.Set(l)
	}
}

// drainTime is the duration over which the ends of streams are distributed when the server stops,
// so that the clients of a fleet do not move to other servers all at once. TimeoutStopSec of the
// unit is longer.
const drainTime = 10 * time.Second

// run starts the parts: first the sources, then the discovery server once the sources' states are
// complete or startWait has ended, then the listeners. After ctx has ended, streams are drained
// before the parts end.
func (p *program) run(ctx context.Context) error {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group := part.NewGroup(running)
	abandon := context.AfterFunc(ctx, func() {
		p.reloader.stopping.Store(true)
		p.notifier.Set(systemd.StateStopping, "clients move to other servers")
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
		return fmt.Errorf("outrider-discoveryd ends: %w", err)
	}
	return nil
}
