package systemtest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// alone is the configuration of an Envoy without an agent, equivalent to that of the agent's Envoy.
// Its unit becomes active when Envoy is ready.
const alone = `{"admin":{"address":{"pipe":{"path":"/run/alone/admin.sock"}}},"static_resources":{
"clusters":[{"name":"web","type":"STATIC","load_assignment":{"cluster_name":"web","endpoints":[{"lb_endpoints":[{"endpoint":{
"address":{"socket_address":{"address":"127.0.0.1","port_value":9000}}}}]}]}}],
"listeners":[{"name":"web","address":{"socket_address":{"address":"0.0.0.0","port_value":80}},"filter_chains":[{"filters":[{"name":"hcm",
"typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
"stat_prefix":"web","route_config":{"virtual_hosts":[{"name":"all","domains":["*"],"routes":[{"match":{"prefix":"/"},"route":{"cluster":"web"}}]}]},
"http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]}}`

const aloneUnit = `[Unit]
Wants=network-online.target
After=network-online.target nss-lookup.target dbus.service
[Service]
Type=exec
RuntimeDirectory=alone
ExecStart=/usr/local/bin/envoy -c /etc/alone.json --concurrency 2 --log-level warning
ExecStartPost=/bin/sh -c 'until curl -sf --unix-socket /run/alone/admin.sock http://a/ready; do sleep 0.01; done'
[Install]
WantedBy=multi-user.target
`

// mostLater is the maximum time by which the agent's Envoy may be ready later than an Envoy without
// an agent.
const mostLater = time.Second

// After a boot, the enabled units serve. The time from the start of systemd until then is compared
// with that of an Envoy without an agent; in the full test, the difference is limited. Broken
// policies still deny what they denied before the boot.
func TestBoot(t *testing.T) {
	h := NewHost(t)
	h.WriteText("/etc/alone.json", alone)
	h.WriteText("/etc/systemd/system/alone.service", aloneUnit)
	h.MustRun(t, "systemctl", "daemon-reload")
	rounds := 1
	if full() {
		rounds = 7
	}
	times := map[string][]time.Duration{}
	for range rounds {
		for unit, other := range map[string]string{"outrider.service": "alone.service",
			"alone.service": "outrider.service"} {
			h.MustRun(t, "systemctl", "disable", other)
			h.MustRun(t, "systemctl", "enable", unit)
			if err := h.Reboot(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.Eventually(time.Minute, unit+" is active",
				func() bool { return h.Property(unit, "ActiveState") == "active" })
			times[unit] = append(times[unit], h.sinceBoot(unit, "ActiveEnterTimestampMonotonic"))
			if unit == "outrider.service" {
				h.startBackend()
				h.MustServe()
			}
			if failed := h.MustRun(t, "systemctl", "list-units", "--failed",
				"--no-legend"); failed != "" {
				t.Errorf("after the boot of %s failed units: %s", unit, failed)
			}
		}
	}
	median := func(unit string) time.Duration {
		slices.Sort(times[unit])
		return times[unit][len(times[unit])/2]
	}
	agent, envoy := median("outrider.service"), median("alone.service")
	t.Logf("boot → ready, medians of %d: outrider %v, Envoy alone %v; all: %v", rounds, agent,
		envoy, times)
	if full() && agent-envoy > mostLater {
		t.Errorf("outrider is ready %v after Envoy alone would be, at most %v", agent-envoy,
			mostLater)
	}
	h.MustRun(t, "systemctl", "disable", "--now", "alone.service")
	h.MustRun(t, "systemctl", "enable", "outrider.service")
	h.RunScript("systemctl stop outrider.service; systemctl reset-failed")
	h.staysClosed()
}

// sinceBoot returns the time from the start of user space (systemd) to a timestamp of a unit.
func (h *Host) sinceBoot(unit, timestamp string) time.Duration {
	h.t.Helper()
	_, booted, _ := strings.Cut(h.MustRun(h.t, "systemctl", "show", "-p",
		"UserspaceTimestampMonotonic"), "=")
	from, err1 := strconv.ParseInt(booted, 10, 64)
	until, err2 := strconv.ParseInt(h.Property(unit, timestamp), 10, 64)
	if err1 != nil || err2 != nil {
		h.t.Fatal(err1, err2)
	}
	return time.Duration(until-from) * time.Microsecond
}
