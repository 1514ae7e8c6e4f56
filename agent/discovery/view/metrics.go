package view

import (
	"maps"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
)

// metrics returns Istio's metrics of the listeners of one mode.
func (v *ProxyView) metrics(mode model.TelemetryMode) *translate.Metrics {
	return translate.NewMetrics(v.world.Metrics(v.node, mode), v.node, mode)
}

// relabel makes clusters have labels for metrics, if the proxy records metrics of its requests. If
// clusters must be translated again for this, it returns touched with all hosts.
func (v *ProxyView) relabel(touched model.ChangeSummary) model.ChangeSummary {
	counts := v.world.Metrics(v.node, model.ClientMode) != nil
	if counts == v.node.RecordsMetrics {
		return touched
	}
	v.node.RecordsMetrics = counts
	hosts := v.world.EverythingChanged().ChangedHosts
	maps.Copy(hosts, touched.ChangedHosts)
	touched.ChangedHosts = hosts
	return touched
}
