package model_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
)

// proxyConfig returns a ProxyConfig. name is NAMESPACE/NAME.
func proxyConfig(name, spec string) string {
	namespace, name, _ := strings.Cut(name, "/")
	return fmt.Sprintf("apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\n"+
		"metadata: {name: %s, namespace: %s}\nspec: {%s}\n---\n", name, namespace, spec)
}

// TestProxySettings_HaveIstiosPrecedence merges ProxyConfigs with the default of MeshConfig. want
// has the concurrency ("-" if none is set), the environment and the ProxyConfigs that apply.
func TestProxySettings_HaveIstiosPrecedence(t *testing.T) {
	const root, every, one = "istio-system/r", "shop/every", "shop/one"
	const app = "selector: {matchLabels: {app: a}}, "
	for _, test := range []struct{ name, objects, want string }{
		{"mesh alone", "", "2 A=mesh B=mesh"},
		{"root", proxyConfig(root, "concurrency: 3"), "3 A=mesh B=mesh r"},
		{"all of the machine's cores", proxyConfig(root, "concurrency: 0"), "0 A=mesh B=mesh r"},
		{"namespace", proxyConfig(root, "concurrency: 3, environmentVariables: {A: r}") +
			proxyConfig(every, "concurrency: 4, environmentVariables: {C: ns}"),
			"4 A=r B=mesh C=ns r every"},
		{"a variable of its own", proxyConfig(every, "environmentVariables: {B: ns}"),
			"2 A=mesh B=ns every"},
		{"selector", proxyConfig(root, "concurrency: 3") + proxyConfig(every, "concurrency: 4") +
			proxyConfig(one, app+"concurrency: 5"), "5 A=mesh B=mesh r every one"},
		{"selector of others", proxyConfig(one, "selector: {matchLabels: {app: b}}, concurrency: 5"),
			"2 A=mesh B=mesh"},
		{"selector of the root namespace", proxyConfig(root, app+"concurrency: 5"), "2 A=mesh B=mesh"},
		{"selector without labels", proxyConfig(one, "selector: {}, concurrency: 5"),
			"2 A=mesh B=mesh"},
		{"other namespace", proxyConfig("bank/x", "concurrency: 5"), "2 A=mesh B=mesh"},
		{"the first of several", proxyConfig("shop/b", "concurrency: 6") + proxyConfig("shop/a",
			"concurrency: 7") + proxyConfig("shop/d", app+"concurrency: 8") +
			proxyConfig("shop/c", app+"concurrency: 9"), "8 A=mesh B=mesh b d, not a c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, _ := meshtest.New(t, "")
			m, workers := mesh.Default(), int32(2)
			m.Concurrency, m.ProxyEnvironment = &workers, map[string]string{"A": "mesh",
				"B": "mesh"}
			w.SetMeshConfig(m)
			w.SetAllowingWarnings(test.objects)
			node := model.Node{Namespace: "shop", Labels: map[string]string{"app": "a"}}
			s := w.ProxySettings(node)
			got := []string{fmt.Sprint(*s.Concurrency)}
			for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
				got = append(got, name+"="+s.Environment[name])
			}
			for _, o := range s.Objects {
				got = append(got, o.Name)
			}
			text := strings.Join(got, " ")
			var shadowed []string
			for o := range w.ShadowedProxyConfigs(node) {
				shadowed = append(shadowed, o.Name)
			}
			if slices.Sort(shadowed); len(shadowed) > 0 {
				text += ", not " + strings.Join(shadowed, " ")
			}
			if d := cmp.Diff(test.want, text); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestProxyConfigs_ChangeTheTextOfTheirFile: after each added, edited or removed ProxyConfig, the
// text for its file is one that has not been returned before.
func TestProxyConfigs_ChangeTheTextOfTheirFile(t *testing.T) {
	w, _ := meshtest.New(t, "")
	seen := map[string]bool{"": true}
	for _, text := range []string{proxyConfig("shop/a", "concurrency: 1"),
		proxyConfig("shop/a", "concurrency: 2"), proxyConfig("shop/b", "concurrency: 2"),
		proxyConfig("shop/b", "concurrency: 2") + proxyConfig("shop/a", "concurrency: 2"), ""} {
		w.Set(text)
		all := slices.Collect(maps.Values(w.ProxyConfigTextsByFile()))
		if now := strings.Join(all, ""); len(all) > 1 || seen[now] != (text == "") {
			t.Errorf("%q: %q", text, all)
		} else {
			seen[now] = true
		}
	}
}
