package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/sts"
	"outrider.org/outrider/agent/xds"
)

// Metrics are the sources of the agent's metrics.
type Metrics struct {
	Version     string
	Started     time.Time
	Conditions  *condition.Registry
	Supervisor  *epoch.Supervisor
	Proxy       *epoch.Proxy
	Keeper      *epoch.KeeperLink
	Discovery   *discovery.Server
	XDS         *xds.Server
	Relay       *relay.Server
	Health      *health.Checker
	Identity    *identity.Manager
	STS         *sts.Server // nil if disabled
	DNS         *dns.Server // nil if disabled
	Capture     *capture.Controller
	Endpoints   *endpoints.Tracker
	PendingKeys func() []string   // changed keys that take effect at the agent's next start
	Connections ConnectionMetrics // connections of the agent's HTTP servers
}

// Gatherer returns the agent's metrics for /stats/prometheus. Their values are read at each scrape.
func (m Metrics) Gatherer() prometheus.Gatherer {
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
		ConstLabels: prometheus.Labels{"version": m.Version}}, func() float64 { return 1 }))
	gauge("current_epoch", "Number of the live epoch, -1 if there is none.",
		func() float64 { return float64(m.Proxy.EpochNumber()) })
	gauge("ready", "1 if the proxy is ready, as /healthz/ready reports.", func() float64 {
		if ready, _ := m.Proxy.Ready(); ready {
			return 1
		}
		return 0
	})
	gauge("epochs_running", "Epochs whose process lives.", func() float64 {
		return float64(m.epochs(func(e epoch.Epoch) bool { return e.State != epoch.StateExited }))
	})
	gauge("epochs_draining", "Epochs that drain: replaced ones, and a live one on request.",
		func() float64 {
			return float64(m.epochs(func(e epoch.Epoch) bool {
				return e.State == epoch.StateDraining || e.State == epoch.StateLive &&
					e.DrainRequested
			}))
		})
	gauge("conditions", "Degraded states that stand.",
		func() float64 { return float64(len(m.Conditions.Conditions())) })
	gauge("pending_restart_keys",
		"Keys that changed on disk and are in force only after the next start.", func() float64 {
			return float64(len(m.PendingKeys()))
		})
	gauge("discovery_problems", "Problems in the embedded discovery server's files.",
		func() float64 { return float64(len(m.Discovery.Problems())) })
	gauge("xds_streams", "Streams of Envoys that are open.",
		func() float64 { return float64(m.XDS.Stats().Streams) })
	counter("xds_refusals_total", "Resources that Envoy refused.", func() float64 {
		var refused uint64
		for _, t := range m.XDS.Stats().Types {
			refused += t.Refusals
		}
		return float64(refused)
	})
	gauge("backends_failing", "Endpoints that have failed and had no success since.",
		func() float64 { return float64(len(m.Endpoints.Problems())) })
	counter("backend_failures_total",
		"Requests and connections that an endpoint refused or did not answer, as far as known.",
		func() float64 { return float64(m.Endpoints.FailureCount()) })
	counter("upstream_streams_lost_total", "Streams of the upstream xDS server that ended.",
		func() float64 { return float64(m.Relay.LostStreams()) })
	gauge("upstream_connected", "1 if each Envoy has a stream of the upstream xDS server.",
		func() float64 {
			if m.Relay.Status().State == relay.Connected {
				return 1
			}
			return 0
		})
	gauge("workload_healthy", "1 if the workload is reported as healthy to the upstream server.",
		func() float64 {
			if m.Health.Status().State == health.StateHealthy {
				return 1
			}
			return 0
		})
	if m.STS != nil {
		counter("token_exchanges_total", "Token exchanges, cached responses not counted.",
			func() float64 { return float64(m.STS.Stats().Exchanges) })
		counter("token_exchange_failures_total", "Token exchanges that failed.",
			func() float64 { return float64(m.STS.Stats().Failures) })
	}
	if m.DNS != nil {
		for result, value := range map[string]func(dns.Stats) uint64{
			"table":     func(s dns.Stats) uint64 { return s.NameTableAnswers },
			"cached":    func(s dns.Stats) uint64 { return s.CachedAnswers },
			"forwarded": func(s dns.Stats) uint64 { return s.ForwardedQueries },
			"failed":    func(s dns.Stats) uint64 { return s.FailedQueries },
		} {
			registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
				Namespace: "outrider", Name: "dns_queries_total",
				Help:        "Queries of the DNS proxy, by the source of the response.",
				ConstLabels: prometheus.Labels{"result": result}},
				func() float64 { return float64(value(m.DNS.Stats())) }))
		}
	}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "outrider",
		Name: "start_time_seconds", Help: "When the agent started, in seconds since 1970."},
		func() float64 { return float64(m.Started.UnixMilli()) / 1000 }))
	registry.MustRegister(discovery.Metrics{Server: m.Discovery}, xds.Metrics{Server: m.XDS}, m.Connections,
		identity.Metrics{Manager: m.Identity}, captureMetrics{m.Capture},
		conditionMetrics{m.Conditions}, clientMetrics{m.Keeper, m.Supervisor})
	registry.MustRegister(prometheus.WrapCollectorWithPrefix("outrider_",
		collectors.NewGoCollector()))
	return registry
}

// epochs returns the number of epochs for which ofKind is true.
func (m Metrics) epochs(ofKind func(epoch.Epoch) bool) int {
	count := 0
	for _, e := range m.Supervisor.Epochs() {
		if ofKind(e) {
			count++
		}
	}
	return count
}
