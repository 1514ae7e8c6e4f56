package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/sources"
)

// errProblems is returned by checkSources if a source has errors. They were written to the output.
var errProblems = errors.New("the sources have errors")

// checkWait bounds how long a check waits for the sources.
const checkWait = 10 * time.Second

// checkSources writes the problems of all sources, or of the named source only, to out. It connects
// to remote sources.
func checkSources(ctx context.Context, options config.Options, name string, out io.Writer) error {
	loaded, err := config.LoadDiscoveryd(options)
	if err != nil {
		return err
	}
	c := loaded.Config
	if name != "" && !slices.Contains(names(c), name) {
		return fmt.Errorf("there is no source %q: the sources are %q", name, names(c))
	}
	only := func(all []*config.Source) (selected []*config.Source) {
		for _, s := range all {
			if s.Type != "memory" && (name == "" || s.Name == name) {
				selected = append(selected, s)
			}
		}
		return selected
	}
	c.Sources, c.Registries = only(c.Sources), only(c.Registries)
	server, err := discovery.New(discovery.Options{Files: filesOf(c), Domain: c.Domain,
		Settings: settingsOf(c), Sources: names(c), RegisterWorkloads: c.Registration.Enabled})
	if err != nil {
		return err
	}
	all, err := sources.New(c, server.AcceptUpdate, func(string) *slog.Logger {
		return slog.New(slog.DiscardHandler)
	})
	if err != nil {
		return err
	}
	failed := synchronise(ctx, all, server, out)
	for _, p := range server.Problems() {
		if p.Severity != condition.Info {
			_, _ = fmt.Fprintf(out, "%s: %s\n", p.Severity, p)
		}
		failed = failed || p.Severity == condition.Error
	}
	if failed {
		return errProblems
	}
	return nil
}

// synchronise runs the sources until each has delivered its state, or until checkWait has passed,
// and then runs the server until it has processed that state. It writes the names of sources that
// have delivered nothing, and reports whether there are any.
func synchronise(ctx context.Context, all []source.Source, server *discovery.Server,
	out io.Writer) (failed bool) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, s := range all {
		running.Go(func() { _ = s.Run(ctx) })
	}
	until := time.Now().Add(checkWait)
	for _, s := range all {
		for !s.Status().Synced && time.Now().Before(until) && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
		}
		status := s.Status()
		if !status.Synced {
			failed = true
			_, _ = fmt.Fprintf(out, "error: %s: has not delivered its state within %v: %v\n",
				s.Name(), checkWait, status.Err)
		} else if status.Problem != "" {
			_, _ = fmt.Fprintf(out, "warning: %s: %s\n", s.Name(), status.Problem)
		}
	}
	group := lifecycle.NewGroup(ctx)
	group.Start(server)
	_ = group.Await(server) // returns an error only if ctx ends
	cancel()
	_ = group.Wait() // Run of the server always returns nil
	return failed
}
