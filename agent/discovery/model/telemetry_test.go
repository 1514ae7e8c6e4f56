package model_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
)

// telemetry returns a Telemetry. name is NAMESPACE/NAME.
func telemetry(name, spec string) string {
	namespace, name, _ := strings.Cut(name, "/")
	return fmt.Sprintf("apiVersion: telemetry.istio.io/v1\nkind: Telemetry\n"+
		"metadata: {name: %s, namespace: %s}\nspec:\n  %s\n---\n", name, namespace,
		strings.ReplaceAll(spec, "\n", "\n  "))
}

// TestAccessLogging merges the access logs of Telemetries. want has the logs of clients and of
// servers, each as PROVIDER, or PROVIDER:FILTER, or -PROVIDER if it is disabled.
func TestAccessLogging(t *testing.T) {
	const root, all, one = "istio-system/r", "shop/every", "shop/w"
	selector := "selector: {matchLabels: {app: a}}\n"
	logs := func(text string) string { return "accessLogging: [" + text + "]" }
	for _, test := range []struct {
		name, defaults, objects, client, server string
	}{
		{"nothing", "", "", "", ""},
		{"default providers", "a,b", "", "a b", "a b"},
		{"no provider", "", telemetry(all, logs("{}")), "", ""},
		{"default providers for an entry without", "a", telemetry(all, logs("{}")), "a", "a"},
		{"provider", "a", telemetry(all, logs("{providers: [{name: b}]}")), "b", "b"},
		{"client only", "", telemetry(all, logs("{match: {mode: CLIENT}, providers: [{name: b}]}")), "b", ""},
		{"root", "", telemetry(root, logs("{providers: [{name: b}]}")), "b", "b"},
		{"namespace replaces root", "", telemetry(root, logs("{providers: [{name: b}]}")) +
			telemetry(all, logs("{providers: [{name: c}]}")), "c", "c"},
		{"namespace inherits providers", "", telemetry(root, logs("{providers: [{name: b}]}")) +
			telemetry(all, logs("{disabled: true}")), "-b", "-b"},
		{"workload", "", telemetry(all, logs("{providers: [{name: b}]}")) +
			telemetry(one, selector+logs("{filter: {expression: x}, providers: [{name: c}]}")), "c:x", "c:x"},
		{"workload disables for clients", "", telemetry(all, logs("{providers: [{name: b}]}")) +
			telemetry(one, selector+logs("{match: {mode: CLIENT}, disabled: true}")), "-b", "b"},
		{"two providers", "", telemetry(all, logs("{providers: [{name: c}, {name: b}]}")), "b c", "b c"},
		{"two entries", "", telemetry(all, logs("{match: {mode: CLIENT}, providers: [{name: b}]}, "+
			"{match: {mode: SERVER}, filter: {expression: x}, providers: [{name: b}]}")), "b", "b:x"},
		{"other namespace", "", telemetry("other/x", logs("{providers: [{name: b}]}")), "", ""},
		{"selector of the root namespace", "", telemetry(root, selector+logs("{providers: [{name: b}]}")),
			"", ""},
		{"other workload", "", telemetry(one, "selector: {matchLabels: {app: b}}\n"+
			logs("{providers: [{name: b}]}")), "", ""},
		{"the first of a namespace", "", telemetry("shop/a", logs("{providers: [{name: b}]}")) +
			telemetry("shop/b", logs("{providers: [{name: c}]}")), "b", "b"},
		{"only tracing", "a", telemetry(all, "tracing: [{}]"), "a", "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := observed(t, test.objects, &meshapi.MeshConfig_DefaultProviders{
				AccessLogging: split(test.defaults)})
			node := model.Node{Type: model.Sidecar, Namespace: "shop",
				Labels: map[string]string{"app": "a"}}
			for mode, want := range map[model.TelemetryMode]string{model.ClientMode: test.client,
				model.ServerMode: test.server} {
				var got []string
				for _, l := range w.AccessLogging(node, mode) {
					text := l.Provider
					if l.Filter != "" {
						text += ":" + l.Filter
					}
					if l.Disabled {
						text = "-" + text
					}
					if l.Object == nil && test.objects != "" && !strings.Contains(test.name, "only") {
						t.Errorf("%s has no object", text)
					}
					got = append(got, text)
				}
				if d := cmp.Diff(want, strings.Join(got, " ")); d != "" {
					t.Errorf("%s (-want +got):\n%s", mode, d)
				}
			}
		})
	}
}

// TestTracing merges the tracing of Telemetries: each field that a Telemetry sets overrides the
// value of Telemetries with lower precedence.
func TestTracing(t *testing.T) {
	const all, one = "shop/every", "shop/w"
	for _, test := range []struct{ name, defaults, objects, client, server string }{
		{"nothing", "", "", "none", "none"},
		{"default provider", "a,b", "", "a", "a"},
		{"provider", "", telemetry(all, "tracing: [{providers: [{name: b}]}]"), "b", "b"},
		{"fields of several", "", telemetry("istio-system/r",
			"tracing: [{providers: [{name: b}], randomSamplingPercentage: 5, customTags: {x: {}}}]") +
			telemetry(all, "tracing: [{randomSamplingPercentage: 0}]") +
			telemetry(one, "selector: {matchLabels: {app: a}}\ntracing: [{customTags: {y: {}, z: {}}, "+
				"enableIstioTags: false, useRequestIdForTraceSampling: false, "+
				"disableContextPropagation: true}]"),
			"b 0 y z -istio -id -context", "b 0 y z -istio -id -context"},
		{"disabled for servers", "a", telemetry(all,
			"tracing: [{match: {mode: SERVER}, disableSpanReporting: true}]"), "a", "a disabled"},
		{"only logs", "", telemetry(all, "accessLogging: [{}]"), "none", "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := observed(t, test.objects, &meshapi.MeshConfig_DefaultProviders{
				Tracing: split(test.defaults)})
			node := model.Node{Type: model.Sidecar, Namespace: "shop",
				Labels: map[string]string{"app": "a"}}
			if d := cmp.Diff(test.client, tracing(w.Tracing(node, model.ClientMode))); d != "" {
				t.Errorf("client (-want +got):\n%s", d)
			}
			if d := cmp.Diff(test.server, tracing(w.Tracing(node, model.ServerMode))); d != "" {
				t.Errorf("server (-want +got):\n%s", d)
			}
		})
	}
}

func tracing(t *model.Tracing) string {
	if t == nil {
		return "none"
	}
	text := t.Provider
	if t.Disabled {
		text += " disabled"
	}
	if t.Sampling != nil {
		text += fmt.Sprint(" ", *t.Sampling)
	}
	for _, name := range []string{"x", "y", "z"} {
		if _, ok := t.Tags[name]; ok {
			text += " " + name
		}
	}
	for name, on := range map[string]bool{"istio": t.IstioTags} {
		if !on {
			text += " -" + name
		}
	}
	if !t.RequestIDSampling {
		text += " -id"
	}
	if t.NoPropagation {
		text += " -context"
	}
	return text
}

// observed returns a mesh with objects and default providers.
func observed(t *testing.T, objects string,
	defaults *meshapi.MeshConfig_DefaultProviders) *meshtest.Mesh {
	t.Helper()
	w, _ := meshtest.New(t, "")
	w.SetAllowingWarnings(objects)
	m := mesh.Default()
	m.DefaultProviders = defaults
	w.SetMeshConfig(m)
	return w
}

func split(names string) []string {
	if names == "" {
		return nil
	}
	return strings.Split(names, ",")
}
