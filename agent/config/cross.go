package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// crossCheck checks combinations of keys whose values are valid individually.
type crossCheck struct {
	*Config
	keyCheck
	options  Options
	complete bool // all files were read, so that absent keys are certainly unset
}

// keyCheck collects the problems of keys that are checked together.
type keyCheck struct {
	positions map[string]Position
	fallback  Position        // position of keys that no file sets
	failed    map[string]bool // keys with errors, excluded from further checks

	errors, warnings Errors
}

func (x *crossCheck) all() {
	if !x.complete {
		return
	}
	x.envoy()
	x.durations()
	x.probes()
	x.telemetry()
	x.identity()
	x.sts()
	x.upstream()
	x.captureDNS()
	x.captureTrial()
	x.resolved()
	x.sockets()
	x.listeners()
}

// refuse records an error about keys, at the position of the first key that a file sets.
func (x *keyCheck) refuse(keys []string, fix, format string, arguments ...any) {
	if e := x.about(keys, fix, format, arguments...); e != nil {
		x.errors = append(x.errors, e)
	}
}

func (x *keyCheck) warn(keys []string, fix, format string, arguments ...any) {
	if e := x.about(keys, fix, format, arguments...); e != nil {
		x.warnings = append(x.warnings, e)
	}
}

func (x *keyCheck) about(keys []string, fix, format string, arguments ...any) *Error {
	for _, key := range keys {
		if x.failed[key] {
			return nil
		}
	}
	e := &Error{Position: x.fallback, Key: keys[0],
		Message: fmt.Sprintf(format, arguments...), Fix: fix}
	for _, key := range keys {
		if position, said := x.positions[key]; said {
			e.Position, e.Key = position, key
			break
		}
	}
	return e
}

func (x *crossCheck) envoy() {
	e := x.Envoy
	if e.CustomConfigFile != "" && e.TemplateFile != "" {
		x.refuse([]string{"envoy.template_file", "envoy.custom_config_file"}, "keep one of the two",
			"envoy.template_file and envoy.custom_config_file exclude each other")
	}
	if e.ControlPlaneBootstrap && e.TemplateFile == "" {
		x.warn([]string{"envoy.control_plane_bootstrap", "envoy.template_file"},
			"set envoy.template_file, or remove the key",
			"has no effect without envoy.template_file")
	}
	if !e.Enabled && x.Capture.Mode != "none" {
		x.refuse([]string{"capture.mode", "envoy.enabled"}, "remove one of the two",
			"there is no Envoy to redirect connections to: envoy.enabled is false")
	}
	if i := x.Identity; x.XDS.GRPCBootstrapFile != "" && i.OutputDir == "" && i.Provider != "files" &&
		i.Provider != "none" {
		x.warn([]string{"xds.grpc_bootstrap_file"}, "set identity.output_dir",
			"gRPC reads certificates from files, and identity.output_dir is not set")
	}
	if x.options.RunsInUnit && e.User != defaultUser {
		x.refuse([]string{"envoy.user"},
			"remove the key, or set User= in a drop-in of outrider-envoy.service",
			"%s is not the user of outrider-envoy.service, which decides under systemd",
			quote(e.User))
	}
}

const capturedDNSPort = 15053 // capture.dnsPort

// captureDNS checks that the DNS proxy listens where outrider-capture redirects queries to.
func (x *crossCheck) captureDNS() {
	host, port, _ := splitAddress(x.DNS.Listen)
	switch {
	case !x.Capture.DNS:
	case x.DNS.Listen == "":
		x.refuse([]string{"capture.dns"}, `set dns.listen = "127.0.0.1:15053"`,
			"needs dns.listen")
	case host != "" && host != "127.0.0.1" && host != "localhost":
		x.refuse([]string{"dns.listen", "capture.dns"}, `set dns.listen = "127.0.0.1:15053"`,
			"capture.dns redirects to 127.0.0.1")
	case port != 0 && port != capturedDNSPort:
		x.refuse([]string{"dns.listen", "capture.dns"}, `set dns.listen = "127.0.0.1:15053"`,
			"capture.dns redirects to port 15053")
	case x.Capture.Mode == "none":
		x.warn([]string{"capture.dns", "capture.mode"}, "set capture.mode",
			"has no effect without capture.mode")
	}
}

func (x *crossCheck) captureTrial() {
	closed := x.Capture.Fail == "closed" || x.RejectsInboundOnFailure()
	if x.Capture.Mode != "none" && x.Capture.TrialDuration > 0 && closed {
		x.warn([]string{"capture.trial", "capture.fail", "capture.fail_inbound"},
			`remove capture.trial after "outrider capture confirm"`,
			"an unconfirmed trial also ends capture.fail and capture.fail_inbound: connections then "+
				"go direct")
	}
}

// resolved checks that the DNS proxy forwards queries of systemd-resolved to a server other than
// systemd-resolved, which would send them back to the proxy.
func (x *crossCheck) resolved() {
	if !x.DNS.SystemdResolved {
		return
	}
	if x.DNS.Listen == "" {
		x.refuse([]string{"dns.resolved"}, `set dns.listen = "127.0.0.1:15053"`, "needs dns.listen")
	}
	for _, upstream := range x.DNS.Upstream {
		if host, _, _ := strings.Cut(upstream, ":"); host == "127.0.0.53" || host == "127.0.0.54" {
			x.refuse([]string{"dns.upstream", "dns.resolved"},
				"remove it; [] = the upstreams of systemd-resolved",
				"%s is systemd-resolved, which sends the mesh's domains to the DNS proxy",
				upstream)
		}
	}
}

func (x *crossCheck) durations() {
	e, r, d := x.Envoy, x.Reload, x.Discovery
	if e.ParentShutdownDuration < e.DrainDuration {
		x.warn([]string{"envoy.parent_shutdown_duration", "envoy.drain_duration"},
			"make it at least as long as envoy.drain_duration",
			"envoy.parent_shutdown_duration, %s, is shorter than envoy.drain_duration, %s: an old epoch "+
				"ends before its connections are drained",
			render(e.ParentShutdownDuration), render(e.DrainDuration))
	}
	if e.MinimumDrainDuration > e.MaximumDrainDuration {
		x.refuse([]string{"envoy.minimum_drain_duration", "envoy.maximum_drain_duration"},
			"make it shorter, or equal",
			"envoy.minimum_drain_duration, %s, is longer than envoy.maximum_drain_duration, %s",
			render(e.MinimumDrainDuration), render(e.MaximumDrainDuration))
	}
	if !e.ExitOnZeroActiveConnections && e.TerminationDrainDuration > e.MaximumDrainDuration {
		x.warn([]string{"envoy.termination_drain_duration", "envoy.maximum_drain_duration"},
			"make envoy.maximum_drain_duration longer",
			"envoy.termination_drain_duration, %s, is longer than envoy.maximum_drain_duration, %s, which "+
				"cuts it short",
			render(e.TerminationDrainDuration), render(e.MaximumDrainDuration))
	}
	if e.RestartBackoffMin > e.RestartBackoffMax {
		x.refuse([]string{"envoy.restart_backoff_min", "envoy.restart_backoff_max"},
			"make it shorter, or equal",
			"envoy.restart_backoff_min, %s, is longer than envoy.restart_backoff_max, %s",
			render(e.RestartBackoffMin), render(e.RestartBackoffMax))
	}
	if r.Debounce > r.MaxDelay {
		x.refuse([]string{"reload.debounce", "reload.max_delay"}, "make it shorter, or equal",
			"reload.debounce, %s, is longer than reload.max_delay, %s", render(r.Debounce),
			render(r.MaxDelay))
	}
	if d.DebounceAfter > d.DebounceMax {
		x.refuse([]string{"discovery.debounce_after", "discovery.debounce_max"},
			"make it shorter, or equal",
			"discovery.debounce_after, %s, is longer than discovery.debounce_max, %s",
			render(d.DebounceAfter), render(d.DebounceMax))
	}
}

func (x *crossCheck) probes() {
	for _, name := range sortedKeys(x.Status.Probes) {
		p := x.Status.Probes[name]
		table := probesTable + "." + bareOrQuoted(name)
		keys := []string{table + ".http", table + ".tcp", table + ".grpc", table}
		if n := count(p.HTTP != "", p.TCP != "", p.GRPC != ""); n != 1 {
			x.refuse(keys, "set exactly one of http, tcp and grpc",
				"the probe %s has %d of http, tcp and grpc", quote(name), n)
		}
		if len(p.Headers) > 0 && p.HTTP == "" {
			x.warn([]string{table, table + ".http"}, "remove them",
				"headers are only for a probe with http")
		}
	}
	h := x.Health
	if n := count(h.HTTP != "", h.TCP != "", h.GRPC != "", len(h.Exec) > 0, h.Unit != ""); n > 1 {
		x.refuse([]string{"health.unit", "health.exec", "health.grpc", "health.tcp", "health.http"},
			"keep one of them",
			"[health] has %d of http, tcp, grpc, exec and unit", n)
	}
	if len(h.Exec) > 0 && !x.options.RunsInUnit {
		x.warn([]string{"health.exec"}, "",
			"runs as the agent's user, with its rights: only the systemd unit has a sandbox for it")
	}
}

func count(conditions ...bool) int {
	n := 0
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}

func (x *crossCheck) telemetry() {
	t := x.Tracing
	if t.Provider != "" && t.Address == "" {
		x.refuse([]string{"tracing.provider", "tracing.address"},
			"set tracing.address to host:port",
			"%s needs tracing.address", quote(t.Provider))
	}
	if t.Provider == "" && t.Address != "" {
		x.warn([]string{"tracing.address", "tracing.provider"}, "set tracing.provider",
			"has no effect without tracing.provider")
	}
	if t.AccessTokenFile != "" && t.Provider != "lightstep" {
		x.warn([]string{"tracing.access_token_file", "tracing.provider"}, "remove the key",
			"has no effect: only tracing.provider \"lightstep\" has an access token")
	}
	if t.CAFile != "" && !t.Secure {
		x.warn([]string{"tracing.ca_file", "tracing.secure"}, "set tracing.secure = true",
			"has no effect without tracing.secure")
	}
	x.tls("telemetry.metrics_service_tls", "telemetry.metrics_service",
		x.Telemetry.MetricsServiceTLS, x.Telemetry.MetricsService)
	x.tls("telemetry.access_log_service_tls", "telemetry.access_log_service",
		x.Telemetry.AccessLogServiceTLS,
		x.Telemetry.AccessLogService)
}

func (x *crossCheck) tls(table, service string, s TLSSettings, address string) {
	mode, cert, key := table+".mode", table+".cert_file", table+".key_file"
	switch {
	case s.Mode == "mutual" && (s.CertFile == "" || s.KeyFile == ""):
		x.refuse([]string{mode, cert, key}, "set both, or mode = \"simple\"",
			"mode \"mutual\" needs cert_file and key_file")
	case s.Mode != "mutual" && (s.CertFile != "" || s.KeyFile != ""):
		x.warn([]string{cert, key, mode}, "set mode = \"mutual\", or remove them",
			"cert_file and key_file have no effect with mode %s", quote(s.Mode))
	}
	if s.Mode != "disable" && address == "" {
		x.warn([]string{mode, service}, "set "+service, "has no effect without %s", service)
	}
}

// maxSocketPath is the longest path that fits into sockaddr_un.sun_path with its terminating NUL.
const maxSocketPath = 107

func (x *crossCheck) sockets() {
	type socket struct{ key, path string }
	ours := []socket{{"sds.socket", x.SDS.Socket}, {"xds.socket", x.XDS.Socket}}
	reserved := map[string]string{ // sockets of the agent with fixed names
		filepath.Join(x.Paths.RuntimeDir, "outrider.sock"): "the socket of the command line",
		filepath.Join(x.Paths.RuntimeDir, "keeper.sock"):   "the keeper's socket",
	}
	for _, s := range ours {
		if len(s.path) > maxSocketPath {
			x.refuse([]string{s.key, "paths.runtime_dir"}, "use a shorter path",
				"%s has %d bytes, the path of a Unix socket may have %d", quote(s.path),
				len(s.path), maxSocketPath)
		}
		if other := reserved[filepath.Clean(s.path)]; other != "" {
			x.refuse([]string{s.key, "xds.socket", "sds.socket"}, "use another path",
				"%s is %s already", quote(s.path), other)
		}
		reserved[filepath.Clean(s.path)] = s.key
	}
	if path := x.Identity.CredentialsSDS; len(path) > maxSocketPath {
		x.refuse([]string{"identity.credentials_sds"}, "use a shorter path, or a symbolic link",
			"%s has %d bytes, the path of a Unix socket may have %d", quote(path), len(path),
			maxSocketPath)
	}
}
