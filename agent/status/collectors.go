package status

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/epoch"
)

// conditionMetrics exports a sample for each active condition (prometheus.Collector).
type conditionMetrics struct{ board *condition.Registry }

var conditionActive = prometheus.NewDesc("outrider_condition",
	"1 for each active condition.", []string{"code", "severity"}, nil)

// Describe implements prometheus.Collector.
func (m conditionMetrics) Describe(out chan<- *prometheus.Desc) { out <- conditionActive }

// Collect implements prometheus.Collector.
func (m conditionMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.board.Conditions() {
		out <- prometheus.MustNewConstMetric(conditionActive, prometheus.GaugeValue, 1, c.Code,
			string(c.Severity))
	}
}

// measureTime bounds the keeper's measurement of the epochs' connections.
const measureTime = 2 * time.Second

// clientMetrics collects the number of clients' connections of each running epoch.
type clientMetrics struct {
	keeper     *epoch.KeeperLink
	supervisor *epoch.Supervisor
}

var clientConnections = prometheus.NewDesc("outrider_client_connections",
	"Connections of clients, by epoch, as in \"outrider status\".", []string{"epoch"}, nil)

// Describe implements prometheus.Collector.
func (m clientMetrics) Describe(out chan<- *prometheus.Desc) { out <- clientConnections }

// Collect implements prometheus.Collector. It omits epochs that the keeper cannot measure.
func (m clientMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), measureTime)
	defer cancel()
	measured := m.keeper.MeasureProcesses(ctx)
	for _, e := range m.supervisor.Epochs() {
		if figures, ok := measured[e.ID]; ok && figures.Exit == nil {
			out <- prometheus.MustNewConstMetric(clientConnections, prometheus.GaugeValue,
				float64(figures.ClientConnections), strconv.Itoa(e.Number))
		}
	}
}

// captureMetrics collects the state and the counters of the capture.
type captureMetrics struct{ controller *capture.Controller }

var (
	captureOn = prometheus.NewDesc("outrider_capture_on",
		"1 while connections are captured.", nil, nil)
	captureDNSOn = prometheus.NewDesc("outrider_capture_dns_on",
		"1 while queries are redirected to the DNS proxy.", nil, nil)
	capturePackets = prometheus.NewDesc("outrider_capture_packets_total",
		"First packets of connections that matched a rule.", []string{"rule"}, nil)
	captureBytes = prometheus.NewDesc("outrider_capture_bytes_total",
		"Bytes of these packets.", []string{"rule"}, nil)
)

// Describe implements prometheus.Collector.
func (m captureMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- captureOn
	out <- captureDNSOn
	out <- capturePackets
	out <- captureBytes
}

// Collect implements prometheus.Collector.
func (m captureMetrics) Collect(out chan<- prometheus.Metric) {
	status, err := m.controller.CallHelper(context.Background(), (*capture.Client).Status)
	if err != nil {
		status = m.controller.State()
	}
	gauge := func(description *prometheus.Desc, state capture.State) {
		value := 0.0
		if state.InForce() {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value)
	}
	gauge(captureOn, status.State)
	gauge(captureDNSOn, status.DNS.State)
	for _, c := range status.Counters {
		out <- prometheus.MustNewConstMetric(capturePackets, prometheus.CounterValue,
			float64(c.Packets), c.Rule)
		out <- prometheus.MustNewConstMetric(captureBytes, prometheus.CounterValue,
			float64(c.Bytes), c.Rule)
	}
}
