package render

import metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"

// statTags are the expressions (std::regex, so lookahead works) that move names of clusters,
// listeners, certificates and the like out of the name of a statistic. The first group is removed
// from the name, the second is the value.
//
// Tags that Istio's bootstrap has keep Istio's names, all others Envoy's. Envoy's expressions cut
// such names at the first dot. Clusters and connection managers of the mesh end theirs with a
// semicolon instead (alt_stat_name, stat_prefix); any other name ends at the first dot, as in
// Envoy. An expression that starts with ^WORD\. is tried for names that start with WORD only.
var statTags = []struct{ name, expression string }{
	{"cluster_name", `^cluster\.((.+?(?=;\.)|[^.]+);?\.)`},
	{"http_conn_manager_prefix", `^http\.((.+?(?=;\.)|[^.]+);?\.)`},
	{"http_conn_manager_listener_prefix",
		`^listener\..+?\.http\.((.+?(?=;\.)|[^.]+(?=\.downstream)|.+(?=\.[^.]+$));?\.)`},
	{"listener_address", `^listener\.((.+?)\.)(?:[a-z_]+$|` +
		`(?:worker_\d+|main_thread|http|ssl|server_ssl_socket_factory|proxy_proto)\.)`},
	{"tcp_prefix", `^tcp\.((.+?)\.)\w+$`},
	{"mongo_prefix", `^mongo\.((.+?)\.)(?:collection|cmd|cx_|op_|delays_|decoding_)`},
	// Istio's remove the class, too: its sum over the codes counts each response twice.
	{"response_code", `_rq(_(\d{3}))$`},
	{"response_code_class", `_rq_((\d))xx$`},
	{"authz_enforce_result", `rbac(\.(allowed|denied))$`},
	{"authz_dry_run_action", `(\.istio_dry_run_(allow|deny)_)`},
	{"authz_dry_run_result", `(\.shadow_(allowed|denied))$`},

	{"envoy.rds_route_config", `^http\..+\.rds\.((.+)\.)[a-z_]+$`},
	{"envoy.virtual_host", `^vhost\.((.+?)\.)(?:route|vcluster)\.`},
	{"envoy.route", `^vhost\..+?\.route\.((.+)\.)[a-z_0-9]+$`},
	{"envoy.virtual_cluster", `^vhost\..+?\.vcluster\.((.+)\.)[a-z_0-9]+$`},
	{"envoy.xds_resource_name", `^sds\.((.+)\.)[a-z_]+$`},
	{"envoy.tls_certificate", `\.ssl\.certificate\.((.+)\.)expiration_unix_time_seconds$`},
}

// envoyTags are tags with Envoy's own expressions. Their values are words of the configuration.
var envoyTags = []string{
	"envoy.worker_id", "envoy.ssl_cipher", "envoy.ssl_curve", "envoy.ssl_sigalg",
	"envoy.ssl_version", "envoy.grpc_bridge_method", "envoy.grpc_bridge_service",
	"envoy.fault_downstream_cluster", "envoy.ratelimit_prefix", "envoy.local_http_ratelimit_prefix",
	"envoy.local_network_ratelimit_prefix", "envoy.local_listener_ratelimit_prefix",
	"envoy.connection_limit_prefix", "envoy.ext_authz_prefix", "envoy.redis_prefix",
}

// statName returns the name of a cluster in the statistics.
func statName(cluster string) string { return cluster + ";" }

func tagSpecifiers() []*metricsv3.TagSpecifier {
	var tags []*metricsv3.TagSpecifier
	for _, tag := range statTags {
		tags = append(tags, &metricsv3.TagSpecifier{TagName: tag.name,
			TagValue: &metricsv3.TagSpecifier_Regex{Regex: tag.expression}})
	}
	for _, name := range envoyTags {
		tags = append(tags, &metricsv3.TagSpecifier{TagName: name})
	}
	return tags
}
