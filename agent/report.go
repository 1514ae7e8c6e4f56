package agent

import (
	"fmt"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/mesh"
)

// report returns the agent's own part of a bug report.
func (b backend) report() []api.ReportPiece {
	build := "not known"
	if info, ok := debug.ReadBuildInfo(); ok {
		build = info.String()
	}
	return []api.ReportPiece{{Name: "build.txt", Text: build},
		{Name: "xds-counters.txt", Text: fmt.Sprintf("%+v\n", b.xds.Stats())}}
}

// metrics returns the agent's metrics for /stats/prometheus. Their values are read at each scrape.
func (a *Agent) metrics() prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	gauge := func(name, help string, value func() float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "outrider",
			Name: name, Help: help}, value))
	}
	counter := func(name, help string, value func() float64) {
		registry.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Namespace: "outrider", Name: name, Help: help}, value))
	}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "outrider",
		Name: "build_info", Help: "1, with the agent's version.",
		ConstLabels: prometheus.Labels{"version": a.options.Version}}, func() float64 { return 1 }))
	gauge("current_epoch", "Number of the live epoch, -1 if there is none.", func() float64 {
		if live, ok := a.proxy.liveEpoch(); ok {
			return float64(live.Number)
		}
		return -1
	})
	gauge("epochs_running", "Epochs whose process lives.", func() float64 {
		running := 0
		for _, e := range a.supervisor.Epochs() {
			if e.State != epoch.Exited {
				running++
			}
		}
		return float64(running)
	})
	gauge("conditions", "Degraded states that stand.",
		func() float64 { return float64(len(a.board.Conditions())) })
	gauge("pending_restart_keys",
		"Keys that changed on disk and are in force only after the next start.", func() float64 {
			_, pending, _ := a.reloader.Standing()
			return float64(len(pending))
		})
	gauge("discovery_problems", "Problems in the embedded discovery server's files.",
		func() float64 { return float64(len(a.discovery.Problems())) })
	gauge("xds_streams", "Streams of Envoys that are open.",
		func() float64 { return float64(a.xds.Stats().Streams) })
	counter("xds_refusals_total", "Resources that Envoy refused.", func() float64 {
		var refused uint64
		for _, t := range a.xds.Stats().Types {
			refused += t.Refusals
		}
		return float64(refused)
	})
	if a.sts != nil {
		counter("token_exchanges_total", "Token exchanges, cached responses not counted.",
			func() float64 { return float64(a.sts.Stats().Exchanges) })
		counter("token_exchange_failures_total", "Token exchanges that failed.",
			func() float64 { return float64(a.sts.Stats().Failures) })
	}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "outrider",
		Name: "start_time_seconds", Help: "When the agent started, in seconds since 1970."},
		func() float64 { return float64(a.started.UnixMilli()) / 1000 }))
	registry.MustRegister(mesh.Metrics{Discovery: a.discovery, XDS: a.xds}, connectionMetrics{a},
		identityMetrics{a})
	registry.MustRegister(prometheus.WrapCollectorWithPrefix("outrider_",
		collectors.NewGoCollector()))
	return registry
}

// values returns the effective configuration in the API's type.
func values(loaded *config.Loaded) []api.ConfigValue {
	var all []api.ConfigValue
	for _, value := range loaded.Values() {
		all = append(all, api.ConfigValue{Key: value.Key, Value: value.Text, Source: value.Source})
	}
	return all
}
