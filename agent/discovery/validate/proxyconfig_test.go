package validate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1beta1"
	"sigs.k8s.io/yaml"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/validate"
)

// TestProxyConfig validates each spec; see TestSpecs.
func TestProxyConfig(t *testing.T) {
	const pc = "ProxyConfig"
	testSpecs(t, []specCase{
		{pc, "{}", ""},
		{pc, "concurrency: 0", ""},
		{pc, "concurrency: 1024\nenvironmentVariables: {A: '', b.c: d}\nselector: {matchLabels: {a: b}}", ""},
		{pc, "concurrency: -1", "!concurrency: -1 is no number of workers"},
		{pc, "concurrency: 1025", "!concurrency: no number"},
		{pc, "selector: {}", "?selector: for no proxy"},
		{pc, "selector: {matchLabels: {a: '*'}}", "!selector.matchLabels[\"a\"]: stands for itself"},
		{pc, "image: {imageType: debug}", "?image: no container"},
		{pc, "environmentVariables: {LD_PRELOAD: /a}", "!environmentVariables[\"LD_PRELOAD\"]: which code"},
		{pc, "environmentVariables: {LD_: a}", "!environmentVariables[\"LD_\"]: which code"},
		{pc, "environmentVariables: {GLIBC_TUNABLES: a}", "!environmentVariables[\"GLIBC_TUNABLES\"]: which code"},
		{pc, "environmentVariables: {PATH: /a}", "!environmentVariables[\"PATH\"]: by the agent"},
		{pc, "environmentVariables: {'': a}", "!environmentVariables[\"\"]: no name"},
		{pc, "environmentVariables: {a=b: c}", "!environmentVariables[\"a=b\"]: no name"},
		{pc, "environmentVariables: {a: \"b\\0\"}", "!environmentVariables[\"a\"]: zero byte"},
		{pc, "environmentVariables: {ISTIO_META_A: b}", "?environmentVariables[\"ISTIO_META_A\"]: Istio's agent"},
		{pc, "environmentVariables: {A: " + strings.Repeat("b", 9000) + "}", "!environmentVariables: more than 8192"},
	})
}

// FuzzProxySettings validates arbitrary specs of ProxyConfigs. In a valid spec, no variable makes
// the dynamic linker load code, the kernel accepts every variable, and all variables together have
// at most 8 KiB of JSON.
func FuzzProxySettings(f *testing.F) {
	for _, seed := range []string{"{}", "concurrency: 3", "concurrency: null\nimage: {imageType: a}",
		"environmentVariables: {A: b, LD_PRELOAD: /c}", "environmentVariables: {'a=b': \"\\0\"}",
		"selector: {matchLabels: {a: b}}\nenvironmentVariables: {A: \"\\u0001\\n<é\"}",
		"concurrency: -2147483648", "selector: {}", "environmentVariables: {GLIBC_TUNABLES: x, PATH: y}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec := &networking.ProxyConfig{}
		encoded, err := yaml.YAMLToJSON([]byte(text))
		if err != nil || protojson.Unmarshal(encoded, spec) != nil {
			return
		}
		for _, finding := range validate.Object(&object.Object{Spec: spec}) {
			if finding.Severity == condition.Error {
				return
			}
		}
		if n := spec.Concurrency.GetValue(); n < 0 || n > 1024 {
			t.Errorf("%d workers", n)
		}
		for name, value := range spec.EnvironmentVariables {
			if name == "" || strings.HasPrefix(name, "LD_") || name == "GLIBC_TUNABLES" ||
				name == "PATH" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
				t.Errorf("%q=%q", name, value)
			}
		}
		variables, err := json.Marshal(spec.EnvironmentVariables)
		if err != nil || len(variables) > 8<<10 {
			t.Errorf("%d bytes: %v", len(variables), err)
		}
	})
}
