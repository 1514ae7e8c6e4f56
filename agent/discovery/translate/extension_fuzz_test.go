package translate_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	extensions "istio.io/api/extensions/v1alpha1"
	types "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// FuzzExtensions translates arbitrary specs of WasmPlugins and TrafficExtensions. Envoy's API must
// not refuse what validation accepts.
func FuzzExtensions(f *testing.F) {
	for _, seed := range []string{"{}", "url: file:///a", "url: a.test/b:latest\nphase: AUTHZ",
		"url: oci://a/b@sha256:c\nimagePullSecret: d\nimagePullPolicy: Always\npriority: -1",
		"url: http://a\nsha256: b\ntype: NETWORK\nfailStrategy: FAIL_OPEN\npluginName: c",
		"url: https://a\npluginConfig: {a: [1, {b: null}]}\nvmConfig: {env: [{name: a, value: b}, " +
			"{name: c, valueFrom: HOST}]}",
		"url: file://\nmatch: [{mode: SERVER, ports: [{number: 1}]}]\nselector: {matchLabels: {a: b}}",
		"lua: {inlineCode: a}\nphase: STATS", "wasm: {url: 'file://%', failStrategy: FAIL_RELOAD}",
		"wasm: {}\nlua: {}", "lua: {}\ntargetRefs: [{kind: Gateway, name: a}]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for kind, spec := range map[object.Kind]proto.Message{
			object.WasmPlugin:       &extensions.WasmPlugin{},
			object.TrafficExtension: &extensions.TrafficExtension{},
		} {
			w := worldOf(kind, spec, text)
			if w == nil {
				continue
			}
			node := model.Node{Namespace: "shop", Labels: spec.(interface {
				GetSelector() *types.WorkloadSelector
			}).GetSelector().GetMatchLabels()}
			for _, e := range w.Extensions(node) {
				for what, err := range resourcesOf(e) {
					if err != nil {
						t.Errorf("%s: %v\n%s", what, err, text)
					}
				}
			}
			w.ModuleSources("shop")
		}
	})
}

// resourcesOf translates all resources that an extension may have, and returns the error of each.
func resourcesOf(e model.Extension) map[string]error {
	errs := map[string]error{}
	if e.GetLua() != nil {
		_, errs["script"] = translate.LuaExtension(e)
		return errs
	}
	_, errs["inline"] = translate.InlineExtension(e, []byte("\x00asm"))
	_, errs["remote"] = translate.RemoteExtension(e)
	_, errs["absent"] = translate.ExtensionWithoutModule(e)
	return errs
}
