package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/ca"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/monitoring"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/web"
)

// monitor serves [listen] monitoring as a component of the program.
type monitor struct {
	lifecycle.Readiness
	address string // address to listen on; "": the server is off
	options monitoring.Options
}

func newMonitor(address string, options monitoring.Options) *monitor {
	return &monitor{address: address, options: options}
}

// newMetrics returns the collectors for /metrics. authority is nil without [ca], registrar without
// [registration].
func newMetrics(server *discovery.Server, streams *xds.Server, authority *ca.Server,
	registrar *registration.Server, states *sourceStates, pages *web.Server) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		discovery.Metrics{Server: server}, xds.Metrics{Server: streams}, states, pages)
	if authority != nil {
		registry.MustRegister(authority)
	}
	if registrar != nil {
		registry.MustRegister(registrar)
	}
	return registry
}

// Name returns the name of the component.
func (m *monitor) Name() string { return "monitoring" }

// Run serves until ctx ends. While the address cannot be bound, it retries every second.
func (m *monitor) Run(ctx context.Context) error {
	m.MarkReady()
	if m.address == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := admission.Bind(ctx, m.address, func(err error) {
		m.options.Logger.Warn("cannot listen on monitoring address", "address", m.address,
			"error", err)
	})
	if err != nil {
		return nil //nolint:nilerr // ctx ended before the address could be bound
	}
	return monitoring.Serve(ctx, listener, m.options)
}

// filesStatus returns the state of the source of type files, which is part of the discovery server;
// nil without such a source.
func filesStatus(c *config.Discoveryd, r *reloader) []web.Source {
	if len(filesOf(c)) == 0 {
		return nil
	}
	return []web.Source{{Name: store.FilesSource, Synced: r.serving.Load()}}
}

// statuses returns the states of all sources that are not of type files.
func statuses(all []source.Source) []web.Source {
	states := make([]web.Source, 0, len(all))
	for _, s := range all {
		now := s.Status()
		state := web.Source{Name: s.Name(), Synced: now.Synced, Inputs: now.Inputs,
			Problem: now.Problem, LastContact: now.LastContact.UTC()}
		if now.Err != nil {
			state.Error = now.Err.Error()
		}
		states = append(states, state)
	}
	return states
}
