package translate_test

import (
	"strings"
	"testing"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// FuzzObserve translates arbitrary specs of Telemetries with arbitrary MeshConfigs. Envoy's API
// must not refuse what validation accepts.
func FuzzObserve(f *testing.F) {
	for _, spec := range []string{"{}", "accessLogging: [{}]", "tracing: [{}]", "metrics: [{}]",
		"accessLogging: [{providers: [{name: a}], filter: {expression: 'true'}, disabled: true}]",
		"accessLogging: [{providers: [{name: a}], match: {mode: CLIENT}}]",
		"tracing: [{providers: [{name: a}], customTags: {b: {header: {name: c}}, d: {}}}]",
		"tracing: [{providers: [{name: a}], randomSamplingPercentage: 5, enableIstioTags: false}]",
		"selector: {matchLabels: {a: b}}\ntracing: [{disableSpanReporting: true}]"} {
		for _, provider := range []string{"envoyFileAccessLog: {logFormat: {labels: {a: '%PROTOCOL%'}}}",
			"envoyHttpAls: {service: ns/web.test, port: 80}", "envoyOtelAls: {service: web.test, port: 80}",
			"zipkin: {service: web.test, port: 80, headers: [{name: a, value: b}]}",
			"opentelemetry: {service: web.test, port: 80, http: {path: /a, timeout: 1s}}"} {
			f.Add(spec, "extensionProviders: [{name: a, "+provider+"}]")
		}
	}
	f.Fuzz(func(t *testing.T, text, config string) {
		spec := &telemetry.Telemetry{}
		w := worldOf(object.Telemetry, spec, text)
		m, _ := meshfile.Parse("mesh.yaml", []byte(config))
		if w == nil || m == nil {
			return
		}
		w.SetMeshConfig(m)
		node := model.Node{Type: model.Sidecar, Namespace: "shop",
			Labels: spec.GetSelector().GetMatchLabels()}
		for _, mode := range []model.TelemetryMode{model.ClientMode, model.ServerMode} {
			for _, p := range translate.Telemetries(w, node, mode).Problems {
				if strings.Contains(p.Message, "would refuse") {
					t.Errorf("%s\n%s\n%s", p, text, config)
				}
			}
		}
	})
}
