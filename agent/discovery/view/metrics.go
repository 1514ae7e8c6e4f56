package view

import (
	"maps"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
)

// metrics returns Istio's metrics of the listeners of one mode.
func (v *View) metrics(mode model.Mode) *translate.Metrics {
	return translate.NewMetrics(v.world.Metrics(v.node, mode), v.node, mode)
}

// relabel makes clusters have labels for metrics, if the proxy records metrics of its requests. If
// clusters must be translated again for this, it returns touched with all hosts.
func (v *View) relabel(touched model.Touched) model.Touched {
	counts := v.world.Metrics(v.node, model.ClientMode) != nil
	if counts == v.node.Metrics {
		return touched
	}
	v.node.Metrics = counts
	hosts := v.world.AllTouched().Hosts
	maps.Copy(hosts, touched.Hosts)
	touched.Hosts = hosts
	return touched
}
