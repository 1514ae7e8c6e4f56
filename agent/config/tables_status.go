package config

import (
	"math"
	"time"
)

func statusTable(s *Status) table {
	return table{name: "status", keys: []key{
		setting("address", &s.Address, "127.0.0.1:15020", Start,
			`"" = off; ":15020" = all addresses, as in Istio`).
			plays("--statusPort").must(optional(listenAddress)),
		setting("ready_port", &s.ReadyPort, 15021, Epoch,
			"Envoy's listener for the same, on address's host; 0 = off").
			must(portOrOff),
		setting("control", &s.ProxyControl, "off", Live,
			"off | loopback: every local user may end the proxy, as in Istio").
			must(oneOf("off", "loopback")).
			below(
				" GET /healthz/ready       200, else 503 with the reason: Envoy is not live, has none of the "+
					"listeners, or a port is reachable past mutual TLS",
				" GET /app-health/NAME     runs the probe NAME below (NAME may hold a /: app/livez)   "+
					"ISTIO_KUBE_APP_PROBERS",
				" GET /stats/prometheus    metrics of the agent, Envoy and the application, merged",
				" POST /drain, POST /quitquitquit    where control allows it (quit: a stop, drain and all)"),
		setting("application_metrics", &s.ApplicationMetrics, "", Live, "URL to merge in").
			plays("prometheus.io annotations").must(optional(httpURL)).conceals(concealURL),
	}}
}

// probeTable returns the definition of one probe; name is not quoted.
func probeTable(name string, p *Probe) table {
	return table{name: probesTable + "." + bareOrQuoted(name), marked: true, sample: true,
		doc: "[live] a probe of the application, forwarded without certificates; exactly one of http, " +
			"tcp and grpc",
		keys: []key{
			setting("http", &p.HTTP, "", Live,
				`"http://127.0.0.1:8080/healthz"`).must(optional(httpURL)).conceals(concealURL),
			setting("tcp", &p.TCP, "", Live, `"127.0.0.1:8080"`).must(optional(dialAddress)),
			setting("grpc", &p.GRPC, "", Live,
				`"127.0.0.1:9000/service"`).must(optional(grpcTarget)),
			setting("headers", &p.Headers, nil, Live, "of an http probe").conceals(concealAll),
			duration("timeout", &p.Timeout, "1s", Live, "").must(atLeast(time.Millisecond)),
		}}
}

func healthTable(h *Health) table {
	return table{name: "health", marked: true,
		doc: "[live] the workload's own readiness, reported upstream (WorkloadGroup probe)",
		keys: []key{
			setting("http", &h.HTTP, "", Live, "one of http, tcp, grpc, exec and unit").
				must(optional(httpURL)).conceals(concealURL),
			setting("tcp", &h.TCP, "", Live, "").must(optional(dialAddress)),
			setting("grpc", &h.GRPC, "", Live, "").must(optional(grpcTarget)),
			setting("exec", &h.Exec, nil, Live,
				`["cmd", "arg"], run by outrider-probe@.service as a user without rights and `+
					`network, with PATH, HOME, LANG; root alone may write the program and its `+
					`folders (not checked: files that arguments name)`).conceals(concealAll),
			setting("unit", &h.Unit, "", Live,
				`"myapp.service" (systemd's ActiveState over D-Bus)`).
				must(optional(systemdUnit)),
			duration("initial_delay", &h.InitialDelay, "0s", Live,
				"").must(atLeast(0)),
			duration("period", &h.Period, "10s", Live,
				"").must(atLeast(time.Millisecond)),
			duration("timeout", &h.Timeout, "1s", Live,
				"").must(atLeast(time.Millisecond)),
			setting("success_threshold", &h.SuccessThreshold, 1, Live, "").
				must(between(1, math.MaxInt32)),
			setting("failure_threshold", &h.FailureThreshold, 3, Live, "").
				must(between(1, math.MaxInt32)),
		}}
}
