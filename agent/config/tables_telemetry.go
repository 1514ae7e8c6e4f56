package config

func telemetryTable(t *Telemetry) table {
	return table{name: "telemetry", keys: []key{
		setting("statsd_udp_address", &t.StatsdUDPAddress, "", Epoch,
			"address:port; the agent resolves a name").
			plays("--statsdUdpAddress").must(optional(dialAddress)),
		setting("metrics_service", &t.MetricsService, "", Epoch,
			"host:port of an Envoy gRPC metrics service").
			plays("--envoyMetricsService").must(optional(dialAddress)),
		setting("access_log_service", &t.AccessLogService, "", Epoch,
			"host:port of an Envoy gRPC ALS").
			plays("--envoyAccessLogService").must(optional(dialAddress)),
		setting("disable_internal", &t.DisableInternalTelemetry, false, Epoch,
			"node metadata and templates only: no Envoy of today reads it").
			plays("--disableInternalTelemetry"),
		setting("prometheus_address", &t.PrometheusAddress, "127.0.0.1:15090", Epoch,
			`Envoy's own metrics listener; "" = off; 0.0.0.0 in Istio`).
			must(optional(envoyListenAddress)),
		setting("stats", &t.Stats, "default", Epoch,
			"Envoy's statistics: default = what dashboards, alerts and `outrider` use | all").
			must(oneOf("default", "all")),
		setting("stats_prefixes", &t.StatsPrefixes, nil, Epoch, "more of them").
			plays("proxyStatsMatcher").must(each(notEmpty)),
		setting("stats_suffixes", &t.StatsSuffixes, nil, Epoch, "").must(each(notEmpty)),
		setting("stats_regexps", &t.StatsRegexps, nil, Epoch, "RE2").
			must(each(expression)),
		setting("access_log_file", &t.AccessLogFile, "", Live,
			`embedded server only: "" = none; /dev/stdout or a path in /var/log/outrider`).
			plays("accessLogFile").must(optional(absolutePath)),
		setting("access_log_format", &t.AccessLogFormat, "", Live,
			`embedded server only: "" = Envoy's default; a line of text, or a JSON object`).
			plays("accessLogFormat").must(logFormat),
	}}
}

// tlsTable returns the definition of the tlsSettings of a gRPC service in [telemetry].
func tlsTable(name, doc string, s *TLSSettings) table {
	return table{name: "telemetry." + name, doc: "[epoch] " + doc, marked: true,
		sample: true, keys: []key{
			setting("mode", &s.Mode, "disable", Epoch, "disable | simple | mutual").
				must(oneOf("disable", "simple", "mutual")),
			setting("ca_file", &s.CAFile, "", Epoch, "").file(),
			setting("cert_file", &s.CertFile, "", Epoch, "").file(),
			setting("key_file", &s.KeyFile, "", Epoch, "").file(),
			setting("server_name", &s.ServerName, "", Epoch, "").must(optional(domainName)),
			duration("tcp_keepalive", &s.TCPKeepalive, "0s", Epoch, "").must(atLeast(0)),
		}}
}

func tracingTable(t *Tracing) table {
	return table{name: "tracing", keys: []key{
		setting("provider", &t.Provider, "", Epoch,
			`"" | zipkin | lightstep | datadog | opentelemetry (today's Envoy has no lightstep tracer: `+
				`rendered as opentelemetry with the header lightstep-access-token)`).
			must(oneOf("", "zipkin", "lightstep", "datadog", "opentelemetry")),
		setting("address", &t.Address, "", Epoch, "").
			plays("--zipkinAddress, --lightstepAddress, --datadogAgentAddress").must(
			optional(dialAddress)),
		setting("access_token_file", &t.AccessTokenFile, "", Epoch, "").
			plays("--lightstepAccessToken").file(),
		setting("secure", &t.Secure, false, Epoch, "").
			plays("--lightstepSecure"),
		setting("ca_file", &t.CAFile, "", Epoch, "").
			plays("--lightstepCacertPath").file(),
		setting("sampling", &t.Sampling, 1.0, Epoch, "percent").
			must(between(0.0, 100.0)),
	}}
}
