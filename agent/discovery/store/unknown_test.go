package store

import (
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// TestDenials_OfWhatIsUnknown reads objects of unknown kinds, API groups, versions and fields.
// Objects that may restrict access are replaced by denials of what they select; all others get a
// warning.
func TestDenials_OfWhatIsUnknown(t *testing.T) {
	const (
		selector = "selector: {matchLabels: {app: a}}"
		rules    = "{" + selector + ", action: DENY, rules: [{}]}"
		mtls     = "{" + selector + ", mtls: {mode: STRICT}}"
		jwt      = "{" + selector + ", jwtRules: [{issuer: a}]}"
		other    = "{" + selector + ", a: {b: [c]}}"
	)
	for _, test := range []struct {
		apiVersion, kind, spec string
		denies                 bool
	}{
		// objects of unknown kinds
		{"security.istio.io/v1", "Foo", other, true},
		{"security.istio.io/v1", "Authorization", other, true},
		{"extensions.istio.io/v1alpha1", "Foo", other, true},
		{"networking.istio.io/v1", "AuthorizationPolicy", rules, true},
		{"v1", "AuthorizationPolicy", rules, true},
		{"", "PeerAuthentication", mtls, true},
		// objects of unknown versions
		{"security.istio.io/v2", "AuthorizationPolicy", rules, true},
		{"security.istio.io/v1alpha1", "RequestAuthentication", jwt, true},
		{"security.istio.io", "PeerAuthentication", mtls, true},
		{"security.istio.io/v1/v1", "PeerAuthentication", mtls, true},
		{"extensions.istio.io/v9", "TrafficExtension", "{" + selector + ", phase: AUTHZ}", true},
		// objects of unknown API groups
		{"security.istio.io.example/v1", "AuthorizationPolicy", rules, true},
		{"authorization.example.com/v1", "AuthorizationPolicy", other, true},
		{"policy.linkerd.io/v1alpha1", "AuthorizationPolicy", other, true},
		{"extensions.higress.io/v1alpha1", "WasmPlugin", other, true},
		{"rbac.istio.io/v1alpha1", "ServiceRole", other, true},
		{"authentication.istio.io/v1alpha1", "Policy", other, true},
		{"istio.io/v1", "Foo", other, true},
		{"securty.istoi.io/v1", "Foo", other, true},
		// kind and API group are unknown
		{"access.example.com/v1", "Rule", rules, true},
		{"access.example.com/v1", "Rule", mtls, true},
		{"access.example.com/v1", "Rule", jwt, true},
		{"access.example.com/v1", "Rule", "{action: DENY, rule: [{}]}", false},
		{"access.example.com/v1", "Rule", "{" + selector + "}", false},
		{"access.example.com/v1", "Rule", other, false},
		// objects with unknown fields
		{"security.istio.io/v1", "AuthorizationPolicy", other, true},
		{"security.istio.io/v1beta1", "PeerAuthentication", other, true},
		{"security.istio.io/v1", "RequestAuthentication", other, true},
		{"extensions.istio.io/v1alpha1", "WasmPlugin", "{" + selector + ", url: file:///a, a: b}", true},
		// objects that cannot restrict access
		{"telemetry.istio.io/v1", "Telemetry", other, false},
		{"telemetri.istio.io/v1", "Telemetry", other, false},
		{"install.istio.io/v1alpha1", "IstioOperator", other, false},
		{"networking.k8s.io/v1", "NetworkPolicy",
			"{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {}}]}]}", false},
		{"networking.k8s.io/v1", "Ingress", "{rules: [{host: a.test, http: {paths: []}}]}", false},
		{"gateway.networking.k8s.io/v1", "HTTPRoute",
			"{parentRefs: [{name: a}], rules: [{backendRefs: [{name: b, port: 80}]}]}", false},
		{"security.openshift.io/v1", "SecurityContextConstraints", "null", false},
		{"kyverno.io/v1", "ClusterPolicy", "{rules: [{name: a, match: {any: []}}]}", false},
		{"apps/v1", "Deployment", "{" + selector + ", replicas: 1}", false},
		{"v1", "Service", "{selector: {app: a}, ports: [{port: 80}]}", false},
		{"v1", "ConfigMap", "null", false},
	} {
		f := newFiles(t)
		f.write("x.yaml", "apiVersion: "+test.apiVersion+"\nkind: "+test.kind+
			"\nmetadata: {name: x, namespace: shop}\nspec: "+test.spec+"\n")
		f.store.Load()
		of := test.apiVersion + " " + test.kind + " " + test.spec
		severity, want := condition.Warning, []string(nil)
		if test.denies {
			severity, want = condition.Error, []string{"shop app=a at 1"}
		}
		if got := f.denials(); !slices.Equal(got, want) {
			t.Errorf("%s: denials %q, want %q", of, got, want)
		}
		if !slices.ContainsFunc(f.store.Problems(), func(p object.Problem) bool {
			return (p.Severity == severity || !test.denies) && p.File == f.path("x.yaml") && p.Line > 0 &&
				strings.Contains(p.String(), test.kind)
		}) {
			t.Errorf("%s: no %s names it: %v", of, severity, f.problems())
		}
	}
}
