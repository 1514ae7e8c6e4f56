package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/part"
	"outrider.org/outrider/agent/xds"
)

// monitoring serves /ready, /metrics and what else its mux has. Connections are bounded.
type monitoring struct {
	part.Readiness
	address string // "": off
	mux     *http.ServeMux
	log     *slog.Logger
}

const monitoringTimeout = time.Minute // of a response

var monitoringLimits = admission.Limits{Total: 128, PerKey: 64}

func newMonitoring(address string, server *discovery.Server, streams *xds.Server,
	readiness func() string, log *slog.Logger) *monitoring {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		discovery.Metrics{Server: server}, xds.Metrics{Server: streams})
	m := &monitoring{address: address, mux: http.NewServeMux(), log: log}
	m.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, EnableOpenMetrics: true}))
	m.mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if why := readiness(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ready")
	})
	return m
}

// Name returns the name of the part.
func (m *monitoring) Name() string { return "monitoring" }

// Run serves until ctx ends. While the address cannot be bound, it retries every second.
func (m *monitoring) Run(ctx context.Context) error {
	m.MarkReady()
	if m.address == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := admission.Bind(ctx, m.address, func(err error) {
		m.log.Warn("cannot listen", "address", m.address, "error", err)
	})
	if err != nil {
		return nil //nolint:nilerr // ctx ended before the address could be bound
	}
	pool := admission.NewPool(monitoringLimits)
	server := admission.NewServer(m.mux, m.log)
	server.WriteTimeout = monitoringTimeout
	return admission.Serve(ctx, server, admission.Listen(listener, admission.Options{
		Admit: func(c net.Conn) (*admission.Pool, admission.Key) {
			return pool, admission.KeyOfTCP(c)
		}}))
}
