package translate

import (
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	accessdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery/model"
)

// TestMetrics_Overrides applies overrides of a Telemetry to a metric with three labels.
func TestMetrics_Overrides(t *testing.T) {
	labels := []label{{"reporter", "source"}, {"source_app", "a"}, {"empty", ""}}
	const orUnknown = `%COALESCE({"operators":[{"command":"CEL","param":"'50\u0025' + f(x\u0029"},` +
		`{"command":"CEL","param":"'unknown'"}]})%`
	for _, test := range []struct {
		tags map[string]string
		want map[string]string
	}{
		{nil, map[string]string{"reporter": "source", "source_app": "a"}},
		{map[string]string{"reporter": ""}, map[string]string{"source_app": "a"}},
		{map[string]string{"nosuch": ""}, map[string]string{"reporter": "source", "source_app": "a"}},
		{map[string]string{"source_app": "'50%' + f(x)"},
			map[string]string{"reporter": "source", "source_app": orUnknown}},
		{map[string]string{"more": "'50%' + f(x)"},
			map[string]string{"reporter": "source", "source_app": "a", "more": orUnknown}},
	} {
		m := &Metrics{of: &model.Metrics{Overrides: map[string]model.MetricOverride{
			"requests_total": {Tags: test.tags}}}}
		got := map[string]string{}
		for _, tag := range m.stat("requests_total", labels).Tags {
			got[tag.Name] = tag.ValueFormat
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.tags, diff)
		}
	}
	m := &Metrics{of: &model.Metrics{Overrides: map[string]model.MetricOverride{
		"requests_total": {Disabled: true}}}}
	c := &statsv3.Config{}
	m.count(c, "requests_total", labels, "")
	m.count(c, "tcp_connections_opened_total", labels, "")
	if len(c.Counters) != 1 {
		t.Errorf("%d counters, want 1", len(c.Counters))
	}
}

// TestMetrics_OtherLogsOfConnections checks that a log writes one line per connection, though Envoy
// also logs the start for the metrics.
func TestMetrics_OtherLogsOfConnections(t *testing.T) {
	filter := celFilter("true")
	proxy := &tcpproxyv3.TcpProxy{AccessLog: []*accesslogv3.AccessLog{{Name: "file"},
		{Name: "filtered", Filter: filter}}}
	NewMetrics(&model.Metrics{}, model.Node{}, model.ClientMode).addToProxy(proxy, stream{})
	if !proxy.AccessLogOptions.FlushAccessLogOnConnected || len(proxy.AccessLog) != 4 {
		t.Fatalf("%v", proxy)
	}
	for i, log := range proxy.AccessLog[:2] {
		ended := log.Filter
		if i == 1 {
			ended = log.Filter.GetAndFilter().GetFilters()[0]
		}
		types := ended.GetLogTypeFilter().GetTypes()
		if len(types) != 1 || types[0] != accessdatav3.AccessLogType_TcpConnectionEnd {
			t.Errorf("%s: %v", log.Name, log.Filter)
		}
	}
}
