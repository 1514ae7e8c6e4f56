package agent

import (
	"os"
	"os/user"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/config"
)

// trustedUsers returns the users whose connections have their own limits: root, the agent's user
// and Envoy's, which requests readiness for port 15021.
func trustedUsers(c *config.Config) []uint32 {
	trusted := []uint32{0, uint32(os.Geteuid())}
	if found, err := user.Lookup(c.Envoy.User); err == nil {
		if uid, err := strconv.ParseUint(found.Uid, 10, 32); err == nil {
			trusted = append(trusted, uint32(uid))
		}
	}
	return trusted
}

// connectionMetrics counts the connections that the agent's addresses evicted or refused.
type connectionMetrics struct{ *Agent }

// Describe sends nothing: the parts that Collect reads are created after the registry.
func (m connectionMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m connectionMetrics) Collect(out chan<- prometheus.Metric) {
	addresses := map[string]admission.Stats{"admin": m.view.Connections(),
		"socket": m.api.Connections()}
	if m.status != nil {
		addresses["status"] = m.status.Connections()
	}
	count := func(name, help, address string, value uint64) {
		desc := prometheus.NewDesc(name, help, []string{"address"}, nil)
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), address)
	}
	for address, stats := range addresses {
		count("outrider_connections_evicted_total",
			"Idle connections that were closed for others, by the address they came to.",
			address, stats.Evicted)
		count("outrider_connections_refused_total",
			"Connections that were refused, as all of their user or host were busy.",
			address, stats.Refused)
	}
}
