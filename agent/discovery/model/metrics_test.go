package model_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/model"
)

// TestMetrics merges the metrics of Telemetries, as in Istio. client and server are "none", or the
// overrides: METRIC:-LABEL,LABEL=EXPRESSION, or -METRIC if it is disabled.
func TestMetrics(t *testing.T) {
	const root, all, one = "istio-system/r", "shop/every", "shop/w"
	selector := "selector: {matchLabels: {app: a}}\n"
	metrics := func(text string) string { return "metrics: [" + text + "]" }
	prometheus := func(overrides string) string {
		return metrics("{providers: [{name: prometheus}], overrides: [" + overrides + "]}")
	}
	for _, test := range []struct {
		name, defaults, objects, client, server string
	}{
		{"nothing", "", "", "none", "none"},
		{"default provider", "prometheus", "", "", ""},
		{"the provider's name in upper case", "Prometheus", "", "", ""},
		{"provider of another type", "envoy", "", "none", "none"},
		{"no provider", "", telemetry(all, metrics("{}")), "none", "none"},
		{"provider", "", telemetry(all, prometheus("")), "", ""},
		{"other namespace", "", telemetry("other/x", prometheus("")), "none", "none"},
		{"disabled", "prometheus", telemetry(all, metrics("{overrides: [{disabled: true}]}")),
			"none", "none"},
		{"all metrics disabled for clients", "prometheus", telemetry(all, metrics("{overrides: "+
			"[{match: {metric: ALL_METRICS, mode: CLIENT}, disabled: true}]}")), "none", ""},
		{"disabled by the root, enabled by the namespace", "prometheus", telemetry(root,
			metrics("{overrides: [{disabled: true}]}")) + telemetry(all, metrics("{overrides: "+
			"[{match: {metric: REQUEST_COUNT}, disabled: false}]}")), "requests_total:",
			"requests_total:"},
		{"one metric disabled", "", telemetry(all, prometheus(
			"{match: {metric: REQUEST_SIZE, mode: SERVER}, disabled: true}")), "", "-request_bytes:"},
		{"labels", "", telemetry(all, prometheus("{match: {metric: REQUEST_COUNT}, tagOverrides: "+
			"{a: {value: request.host}, reporter: {operation: REMOVE}}}")),
			"requests_total:-reporter,a=request.host", "requests_total:-reporter,a=request.host"},
		{"later overrides precede", "", telemetry(root, prometheus(
			"{match: {metric: REQUEST_COUNT}, tagOverrides: {a: {value: one}, b: {value: two}}}")) +
			telemetry(one, selector+metrics("{overrides: [{match: {metric: REQUEST_COUNT}, "+
				"tagOverrides: {a: {operation: REMOVE}}}]}")),
			"requests_total:-a,b=two", "requests_total:-a,b=two"},
		{"other provider replaces", "prometheus", telemetry(all,
			metrics("{providers: [{name: envoy}]}")), "none", "none"},
		{"custom metric", "", telemetry(all, prometheus("{match: {customMetric: own}, disabled: true}")),
			"-own:", "-own:"},
	} {
		t.Run(test.name, func(t *testing.T) {
			world := observed(t, test.objects, &meshapi.MeshConfig_DefaultProviders{
				Metrics: split(test.defaults)})
			node := model.Node{Type: model.Sidecar, Namespace: "shop",
				Labels: map[string]string{"app": "a"}}
			for mode, want := range map[model.TelemetryMode]string{model.ClientMode: test.client,
				model.ServerMode: test.server} {
				if got := describe(world.Metrics(node, mode)); got != want {
					t.Errorf("%s: %s, want %s", mode, got, want)
				}
			}
		})
	}
}

func describe(m *model.Metrics) string {
	if m == nil {
		return "none"
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m.Overrides)) {
		override := m.Overrides[name]
		var labels []string
		for label, expression := range override.Tags {
			if expression == "" {
				labels = append(labels, "-"+label)
			} else {
				labels = append(labels, label+"="+expression)
			}
		}
		slices.Sort(labels)
		if override.Disabled {
			name = "-" + name
		}
		all = append(all, fmt.Sprintf("%s:%s", name, strings.Join(labels, ",")))
	}
	return strings.Join(all, " ")
}
