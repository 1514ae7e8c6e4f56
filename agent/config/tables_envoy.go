package config

import (
	"math"
	"time"
)

// maxBaseID is the largest --base-id: Envoy multiplies it by 10 in 32 bits.
const maxBaseID = math.MaxUint32 / 10

func envoyTable(c *Config) table {
	e := &c.Envoy
	return table{name: "envoy", keys: []key{
		setting("binary", &e.Binary, "", Epoch,
			`"" = /usr/lib/outrider/envoy (the one that "outrider envoy use" chose), `+
				"/usr/local/bin/envoy, /usr/bin/envoy, then $PATH").
			plays("--binaryPath").program(),
		setting("enabled", &e.Enabled, true, Start,
			"false: no Envoy; SDS, xDS relay, certificates and DNS only (proxyless gRPC)").
			plays("DISABLE_ENVOY"),
		setting("config_dir", &e.ConfigDir, "", Start,
			`"" = <runtime_dir>/envoy; holds envoy-rev<N>.json, one per epoch`).
			plays("--configPath").path().or(envoyFolder(c, "")),
		setting("custom_config_file", &e.CustomConfigFile, "", Epoch,
			"a complete Envoy bootstrap of the user's own, copied to envoy-rev<N>.json").
			plays("--customConfigFile").file(),
		setting("template_file", &e.TemplateFile, "", Epoch,
			"a Go text/template that renders the bootstrap").
			plays("--templateFile").file(),
		setting("control_plane_bootstrap", &e.ControlPlaneBootstrap, false, Epoch,
			"template_file renders a control plane's own bootstrap (true in pilot-agent 1.5, where only "+
				"control planes used a template)").
			plays("--controlPlaneBootstrap"),
		setting("bootstrap_override", &e.BootstrapOverride, "", Epoch,
			"a JSON/YAML file merged, by Envoy's rules, into envoy-rev<N>.json").
			plays("ISTIO_BOOTSTRAP_OVERRIDE").file(),
		setting("concurrency", &e.Concurrency, 0, Epoch, "worker threads; 0 = one per core").
			plays("--concurrency").must(between(0, 1024)),
		setting("log_level", &e.LogLevel, "warning", Live,
			"trace|debug|info|warning|error|critical|off").
			plays("--proxyLogLevel").must(oneOf(EnvoyLogLevels()...)),
		setting("component_log_level", &e.ComponentLogLevel, "misc:error", Live, "").
			plays("--proxyComponentLogLevel").must(optional(componentLevels)),
		setting("admin_port", &e.AdminPort, 15000, Live,
			"on loopback: a view of the live epoch's admin interface, kept by the agent. Envoy's own "+
				"listens on a Unix socket per epoch, 0660; with custom_config_file the file's own admin "+
				"address counts instead. 0 = no view").
			plays("--proxyAdminPort").must(portOrOff),
		setting("admin_access", &e.AdminAccess, "read", Live,
			"read: the GETs that change nothing (server_info, ready, stats, clusters, listeners, "+
				"config_dump, certs, memory, runtime, init_dump, …), credentials redacted | full: "+
				"everything, for every local user, as in Istio").
			must(oneOf("read", "full")),
		duration("connect_timeout", &e.ConnectTimeout, "1s", Epoch, "of the bootstrap's clusters").
			plays("--connectTimeout").must(atLeast(time.Millisecond)),
		duration("dns_refresh_rate", &e.DNSRefreshRate, "300s", Epoch, "").
			plays("--dnsRefreshRate").must(atLeast(time.Millisecond)),
		setting("stat_name_length", &e.StatNameLength, 189, Epoch,
			"only for an Envoy that lists --max-obj-name-len; with any other a different value is an "+
				"error that says so").
			plays("statNameLength").must(between(60, math.MaxUint16)),
		setting("max_connections", &e.MaxConnections, 0, Epoch,
			"overload limit of downstream connections; 0 = none, or twice [capture] max_connections "+
				"where connections are captured").
			must(between(0, math.MaxInt32)),
		duration("drain_duration", &e.DrainDuration, "45s", Epoch,
			"--drain-time-s of an epoch that is replaced, and of outrider drain: inbound connections are "+
				"captured for half of it").
			plays("--drainDuration").must(between(0, longestDrain), wholeSeconds),
		duration("parent_shutdown_duration", &e.ParentShutdownDuration, "60s", Epoch,
			"--parent-shutdown-time-s; shorter than drain_duration is a warning").
			plays("--parentShutdownDuration").must(between(0, longestDrain), wholeSeconds),
		duration("termination_drain_duration", &e.TerminationDrainDuration, "5s", Live,
			"on stop: how long new connections are still taken; then listeners close, and requests in "+
				"flight may end until maximum_drain_duration").
			plays("TERMINATION_DRAIN_DURATION").must(between(0, longestDrain)),
		setting("exit_on_zero_active_connections", &e.ExitOnZeroActiveConnections, false, Live,
			"on stop: close the listeners as soon as no connection is left, but not before "+
				"minimum_drain_duration").
			plays("EXIT_ON_ZERO_ACTIVE_CONNECTIONS"),
		duration("minimum_drain_duration", &e.MinimumDrainDuration, "5s", Live, "").
			plays("MINIMUM_DRAIN_DURATION").must(between(0, longestDrain)),
		duration("maximum_drain_duration", &e.MaximumDrainDuration, "60s", Live,
			"the upper bound of a stop's drain, counted from its beginning; what is left is aborted").
			must(between(0, longestDrain)),
		duration("live_timeout", &e.LiveTimeout, "60s", Live,
			"an epoch that is not live by then is aborted and the previous one goes on").
			must(atLeast(time.Millisecond)),
		duration("restart_backoff_min", &e.RestartBackoffMin, "1s", Live,
			"Envoy exited on its own: the first restart is at once, the second after this, then doubling; "+
				"forgotten after a minute without an exit").
			must(atLeast(time.Millisecond)),
		duration("restart_backoff_max", &e.RestartBackoffMax, "60s", Live, "").
			must(atLeast(time.Millisecond)),
		setting("restart_limit", &e.RestartLimit, 10, Live,
			"abnormal exits within restart_window that are answered by a restart; at one more the agent "+
				"gives up (exit 75); 0 = never gives up").
			must(between(0, math.MaxInt32)),
		duration("restart_window", &e.RestartWindow, "10m", Live, "").
			must(atLeast(time.Millisecond)),
		setting("user", &e.User, defaultUser, Start,
			"foreground, as root: Envoy and its keeper run as this user, if there is one (else, and not "+
				"as root, as the agent's own). Under systemd the User= of outrider-envoy.service decides; "+
				"another value here is an error").
			must(userName),
		setting("outlier_log_path", &e.OutlierLogPath, "", Epoch, "").
			plays("--outlierLogPath").path(),
		setting("base_id", &e.BaseID, 0, Start,
			"Envoy's --base-id; 0 = one that is free (several agents on a host)").
			must(between(0, maxBaseID)),
		setting("extra_args", &e.ExtraArgs, nil, Epoch,
			"refused: what the agent itself passes (-c, --base-id, --restart-epoch, --drain-*, …)").
			must(extraArguments),
	}}
}

// defaultUser is the user of outrider-envoy.service.
const defaultUser = "outrider-envoy"

// longestDrain is the maximum of all drain durations.
const longestDrain = 24 * time.Hour

func reloadTable(r *Reload) table {
	return table{name: "reload", keys: []key{
		setting("watch", &r.Watch, true, Start,
			"a file that changed starts an epoch, if its content calls for one"),
		setting("on_request", &r.NewEpochOnRequest, "always", Live,
			"SIGHUP, systemctl reload: always | if-changed start a new epoch").
			must(oneOf("always", "if-changed")),
		setting("files", &r.Files, nil, Live,
			"further files whose content starts an epoch (certificates of a custom bootstrap); each is "+
				"awaited at start").
			plays("watched certificates of 1.5").file().must(each(notEmpty)),
		duration("debounce", &r.Debounce, "100ms", Live,
			"quiet time after the last change before acting").
			must(atLeast(0)),
		duration("max_delay", &r.MaxDelay, "10s", Live,
			"act at the latest this long after the first change").
			must(atLeast(0)),
		setting("validate", &r.Validate, true, Live,
			"check a new bootstrap with `envoy --mode validate` before starting an epoch"),
	}}
}
