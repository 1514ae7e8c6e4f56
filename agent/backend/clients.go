package backend

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/epoch"
)

// clients implements drained with the numbers that the status shows.
type clients struct {
	*epoch.Proxy
	keeper *epoch.Link
}

// Connections returns the number of clients' connections of an epoch.
func (c clients) Connections(ctx context.Context, e epoch.Epoch) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	return c.keeper.Clients(ctx, e.ID)
}

// clientMetrics collects the number of clients' connections of the epochs that run.
type clientMetrics struct{ backend *Backend }

var clientConnections = prometheus.NewDesc("outrider_client_connections",
	"Connections of clients, by epoch, as in \"outrider status\".", []string{"epoch"}, nil)

// Describe implements prometheus.Collector.
func (m clientMetrics) Describe(out chan<- *prometheus.Desc) { out <- clientConnections }

// Collect implements prometheus.Collector. An epoch that cannot be measured now is missing.
func (m clientMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), measureTime)
	defer cancel()
	measured := m.backend.Keeper.Measure(ctx)
	for _, e := range m.backend.Supervisor.Epochs() {
		if figures, ok := measured[e.ID]; ok && figures.Exit == nil {
			out <- prometheus.MustNewConstMetric(clientConnections, prometheus.GaugeValue,
				float64(figures.Downstream), strconv.Itoa(e.Number))
		}
	}
}
