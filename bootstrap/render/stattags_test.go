package render

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// named is a configuration with dots in its names: a cluster without an endpoint, an HTTP listener
// on an IPv6 address with a local rate limit, and a TCP listener.
const named = `{"static_resources": {
"clusters": [
  {"name": "c", "alt_stat_name": "outbound|80|v1|b.default.svc.cluster.local;", "type": "STATIC"},
  {"name": "plain", "type": "STATIC"}],
"listeners": [
  {"name": "http", "address": {"socket_address": {"address": "::1", "port_value": %[1]d}},
   "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": {
     "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
     "stat_prefix": "outbound_0.0.0.0_80;",
     "http_filters": [
       {"name": "envoy.filters.http.local_ratelimit", "typed_config": {
         "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
         "stat_prefix": "gate", "filter_enabled": {"default_value": {"numerator": 100}},
         "token_bucket": {"max_tokens": 9, "fill_interval": "1s"}}},
       {"name": "envoy.filters.http.router", "typed_config": {
         "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
     "route_config": {"virtual_hosts": [{"name": "b.example.com:80", "domains": ["*"], "routes": [
       {"match": {"prefix": "/"}, "stat_prefix": "checkout.v1", "route": {"cluster": "c"}}]}]}}}]}]},
  {"name": "tcp", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %[2]d}},
   "filter_chains": [{"filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": {
     "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
     "stat_prefix": "outbound|5432||db.example.com", "cluster": "plain"}}]}]}]}}`

// TestStatTags_NamesAreLabels checks that names with dots become labels in Envoy's metrics, and
// which metrics of a request and a connection are missing unless all statistics are selected.
func TestStatTags_NamesAreLabels(t *testing.T) {
	http6, tcp := parts.FreePort(t), parts.FreePort(t)
	wants := []struct {
		sample    string
		byDefault bool
	}{
		{`cluster_upstream_rq_xx{envoy_response_code_class="5",` +
			`cluster_name="outbound|80|v1|b.default.svc.cluster.local"} 1`, true},
		{`cluster_upstream_rq{envoy_response_code="503",` +
			`cluster_name="outbound|80|v1|b.default.svc.cluster.local"} 1`, true},
		{`cluster_membership_total{cluster_name="plain"} 0`, true},
		{`cluster_upstream_cx_none_healthy{cluster_name="plain"} 1`, true},
		{`http_downstream_rq_xx{envoy_response_code_class="5",` +
			`http_conn_manager_prefix="outbound_0.0.0.0_80"} 1`, true},
		{`vhost_route_upstream_rq{envoy_route="checkout.v1",envoy_virtual_host="b.example.com:80",` +
			`envoy_response_code="503"} 1`, true},
		{`http_local_rate_limit_enabled{envoy_local_http_ratelimit_prefix="gate"} 1`, true},
		{`tcp_downstream_cx_total{tcp_prefix="outbound|5432||db.example.com"} 1`, true},
		{fmt.Sprintf(`listener_downstream_cx_total{listener_address="[__1]_%d"} 1`, http6), true},
		{fmt.Sprintf(`listener_http_downstream_rq_xx{envoy_response_code_class="5",listener_address=`+
			`"[__1]_%d",http_conn_manager_listener_prefix="outbound_0.0.0.0_80"} 1`, http6), false},
		{fmt.Sprintf(`listener_worker_downstream_cx_total{envoy_worker_id="0",listener_address=`+
			`"[__1]_%d"} 1`, http6), false},
		{`cluster_bind_errors{cluster_name="plain"} 0`, false},
	}
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprintf("all=%t", all), func(t *testing.T) {
			text := count(t, all, http6, tcp)
			for _, want := range wants {
				has := hasSample(text, "envoy_"+want.sample)
				if has != (all || want.byDefault) {
					family, _, _ := strings.Cut(want.sample, "{")
					t.Errorf("%s: %t, of\n%s", want.sample, has, strings.Join(regexp.MustCompile(
						"(?m)^envoy_"+family+"{.*$").FindAllString(text, -1), "\n"))
				}
			}
			parted := regexp.MustCompile(
				`(?m)^# TYPE .*(example|svc|v1|127_|__1|_\d{3}|gate).*$`)
			if found := parted.FindAllString(text, -1); len(found) > 0 {
				t.Error(found)
			}
		})
	}
}

// count sends a request and a connection to an Envoy with the configuration named, and returns its
// metrics.
func count(t *testing.T, all bool, http6, tcp int) string {
	t.Helper()
	dir := parts.ShortDir(t)
	in := input(inputs["minimal"])
	in.AdminSocket, in.Stats.All = filepath.Join(dir, "admin.sock"), all
	merged, err := Override(render(t, in), "bootstrap", "named.json",
		fmt.Appendf(nil, named, http6, tcp))
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir, in.AdminSocket, merged)
	if code, _ := get(t, fmt.Sprintf("[::1]:%d", http6), http.MethodGet, "/"); code != 503 {
		t.Fatal(code)
	}
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", tcp))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = connection.Read(make([]byte, 1)) // wait until Envoy closes the connection
	_ = connection.Close()
	_, text := get(t, in.AdminSocket, http.MethodGet, "/stats/prometheus")
	return text
}

// hasSample reports whether the metrics contain a sample, with its labels in any order.
func hasSample(text, want string) bool {
	sorted := func(sample string) []string {
		labels := strings.FieldsFunc(sample, func(r rune) bool { return strings.ContainsRune("{,}", r) })
		slices.Sort(labels)
		return labels
	}
	for line := range strings.Lines(text) {
		if slices.Equal(sorted(strings.TrimSpace(line)), sorted(want)) {
			return true
		}
	}
	return false
}
