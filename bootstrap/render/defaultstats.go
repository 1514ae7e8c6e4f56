package render

import "strings"

// The default statistics: those that the outrider command, readiness and drains read, those of the
// packaged dashboard and alerts, those of published dashboards for Envoy, and those that Istio's
// bootstrap requires. Without downstream_cx_active and downstream_rq_active a busy epoch would look
// idle and be terminated. The membership statistics of clusters are included because Envoy's
// filters read them.
var (
	defaultPrefixes = []string{
		"cluster_manager.", "listener_manager.", "server.", "overload.",
		"control_plane.connected_state", "filesystem.reopen_failed", "filesystem.write_failed",
		"reporter=", "component", "istio", "wasm", // Istio's telemetry
	}
	defaultSuffixes = []string{
		"downstream_cx_active", "downstream_rq_active",
		"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied",
	}

	clusterStats = fields(`
		membership_(change|degraded|excluded|healthy|total) update_(failure|success)
		lb_healthy_panic warming_state
		upstream_cx_(active|connect_fail|connect_ms|connect_timeout|destroy_remote_with_active_rq)
		upstream_cx_(http[123]_total|idle_timeout|none_healthy|overflow|pool_overflow)
		upstream_cx_(protocol_error|rx_bytes_total|total|tx_bytes_total)
		upstream_rq_(active|cancelled|completed|maintenance_mode|pending_active)
		upstream_rq_(pending_failure_eject|pending_overflow|per_try_timeout|retry|retry_overflow)
		upstream_rq_(retry_limit_exceeded|retry_success|rx_reset|time|timeout|total|tx_reset)
		upstream_rq_\dxx upstream_rq_\d\d\d
		circuit_breakers\.default\.(cx_open|rq_open|rq_pending_open|rq_retry_open)
		health_check\.(attempt|failure|healthy|success)
		outlier_detection\.ejections_(active|enforced_total|overflow)
		ssl\.(connection_error|fail_verify_cert_hash|fail_verify_error|fail_verify_no_cert)
		ssl\.(fail_verify_san|handshake) (ext_authz|ratelimit)\..*`)

	httpStats = fields(`
		downstream_cx_(drain_close|http[123]_total|idle_timeout|overload_disable_keepalive)
		downstream_cx_(protocol_error|rx_bytes_total|ssl_active|ssl_total|total|tx_bytes_total)
		downstream_cx_upgrades_(active|total)
		downstream_rq_(completed|header_timeout|http[123]_total|idle_timeout|overload_close)
		downstream_rq_(response_before_rq_complete|rx_reset|time|timeout|too_large|total|tx_reset)
		downstream_rq_\dxx no_cluster no_route rq_direct_response rq_total
		rds\..*\.update_(failure|rejected|success)
		(ext_authz|jwt_authn|ratelimit)\..*`)

	listenerStats = fields(`
		downstream_cx_(overflow|overload_reject|total|transport_socket_connect_timeout)
		downstream_global_cx_overflow downstream_pre_cx_(active|timeout) no_filter_chain_match
		ssl\.(connection_error|fail_verify_cert_hash|fail_verify_error|fail_verify_no_cert)
		ssl\.(fail_verify_san|handshake|no_certificate|session_reused) ssl\.certificate\..*`)

	tcpStats = fields(`downstream_cx_(no_route|rx_bytes_total|total|tx_bytes_total)`)
)

func fields(expressions string) []string { return strings.Fields(expressions) }

// Patterns of the names of clusters and connection managers (delimited) and of listeners (address)
// in the names of statistics; see statTags. The whole rest of a statistic's name must be one of the
// selected ones. This excludes a cluster's statistics of internal and external responses, which
// count responses twice, and the statistics of single workers.
const (
	delimited = `(.*;|[^.]*)`
	address   = `(\d[\d.]*_\d+|[^.]*)`
)

// defaultExpressions returns the expressions (RE2) of the default statistics.
func defaultExpressions() []string {
	in := func(scope, name string, stats []string) string {
		return scope + `\.` + name + `\.(` + strings.Join(stats, "|") + `)`
	}
	return []string{
		in("cluster", delimited, clusterStats), in("http", delimited, httpStats),
		in("listener", address, listenerStats), in("tcp", ".*", tcpStats),
		`sds\..*\.(key_rotation_failed|update_failure|update_rejected|update_success)`,
		`vhost\..*\.route\..*`, // of a route with statPrefix
		`.*(local_rate_limit|connection_limit)\..*`,
		`access_logs\.[^.]*\.logs_(dropped|written)`,
		`tracing\.[^.]*\.(reports_(dropped|failed|sent|skipped_no_cluster)|(spans|segments)_(dropped|sent))`,
	}
}
