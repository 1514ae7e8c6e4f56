package render

import metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"

// statTags are the expressions that move names of clusters, listeners, secrets and the like from
// the name of a statistic into tags. The first group is removed from the name, the second is the
// value.
//
// Tags that Istio's bootstrap defines have Istio's names, all others Envoy's. Envoy's own
// expressions end such names at the first dot. Names of the mesh's clusters and connection managers
// end with a semicolon instead (alt_stat_name, stat_prefix); any other name ends at the first dot,
// as in Envoy.
//
// Envoy matches with std::regex, which is slow: each expression starts with ^WORD\., so that Envoy
// tries it only for names that start with WORD.
var statTags = []struct{ name, expression string }{
	{"cluster_name", `^cluster\.` + delimitedTag},
	{"http_conn_manager_prefix", `^http\.` + delimitedTag},
	{"http_conn_manager_listener_prefix",
		`^listener\..+?\.http\.(([^;]+(?=;\.)|.+(?=\.[^.]+$));?\.)`},
	{"listener_address", `^listener\.((.+?)\.)(?:[a-z_]+$|` +
		`(?:worker_\d+|main_thread|http|ssl|server_ssl_socket_factory|proxy_proto)\.)`},
	{"tcp_prefix", `^tcp\.((.+?)\.)\w+$`},
	{"mongo_prefix", `^mongo\.((.+?)\.)(?:collection|cmd|cx_|op_|delays_|decoding_)`},
	{"authz_enforce_result", `^http\..+rbac(\.(allowed|denied))$`},
	{"authz_dry_run_action", `^http\..+(\.istio_dry_run_(allow|deny)_)`},
	{"authz_dry_run_result", `^http\..+(\.shadow_(allowed|denied))$`},

	{"envoy.rds_route_config", `^http\..+\.rds\.((.+)\.)[a-z_]+$`},
	{"envoy.virtual_host", `^vhost\.((.+?)\.)(?:route|vcluster)\.`},
	{"envoy.route", `^vhost\..+?\.route\.((.+)\.)[a-z_0-9]+$`},
	{"envoy.virtual_cluster", `^vhost\..+?\.vcluster\.((.+)\.)[a-z_0-9]+$`},
	{"envoy.tls_certificate", `^listener\..+\.ssl\.certificate\.((.+)\.)expiration_\w+$`},
	{"envoy.xds_resource_name", `^sds\.((.+)\.)[a-z_]+$`},
}

// delimitedTag matches a name up to a semicolon, else to the first dot.
const delimitedTag = `(([^;]+(?=;\.)|[^.]+);?\.)`

// clusterCertificate is the expression of the tag envoy.tls_certificate for statistics of clusters.
// It doubles the cost of each cluster and is not needed for the default statistics.
const clusterCertificate = `^cluster\.[^;]+;\.ssl\.certificate\.((.+)\.)expiration_\w+$`

// envoyTags are tags with Envoy's own expressions. Their values contain no dots.
var envoyTags = []string{
	"envoy.response_code", "envoy.response_code_class", "envoy.worker_id",
	"envoy.ssl_cipher", "envoy.ssl_curve", "envoy.ssl_sigalg",
	"envoy.ssl_version", "envoy.grpc_bridge_method", "envoy.grpc_bridge_service",
	"envoy.fault_downstream_cluster", "envoy.ratelimit_prefix", "envoy.local_http_ratelimit_prefix",
	"envoy.local_network_ratelimit_prefix", "envoy.local_listener_ratelimit_prefix",
	"envoy.connection_limit_prefix", "envoy.ext_authz_prefix", "envoy.redis_prefix",
}

// statName returns the name of a cluster in its statistics, with the semicolon that delimitedTag
// expects.
func statName(cluster string) string { return cluster + ";" }

func tagSpecifiers(all bool) []*metricsv3.TagSpecifier {
	var tags []*metricsv3.TagSpecifier
	add := func(name, expression string) {
		tags = append(tags, &metricsv3.TagSpecifier{TagName: name,
			TagValue: &metricsv3.TagSpecifier_Regex{Regex: expression}})
	}
	for _, tag := range statTags {
		add(tag.name, tag.expression)
	}
	if all {
		add("envoy.tls_certificate", clusterCertificate)
	}
	for _, name := range envoyTags {
		tags = append(tags, &metricsv3.TagSpecifier{TagName: name})
	}
	return tags
}
