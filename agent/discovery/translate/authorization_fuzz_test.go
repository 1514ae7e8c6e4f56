package translate_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
	"sigs.k8s.io/yaml"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/discovery/validate"
)

// FuzzAuthorize translates arbitrary specs of AuthorizationPolicies. Envoy's API must not refuse
// what validation accepts.
func FuzzAuthorize(f *testing.F) {
	for _, seed := range []string{"{}", "action: DENY\nrules: [{}]",
		`rules: [{from: [{source: {principals: ["*", a*, "*b", c/ns/d/sa/e], namespaces: ["a*b"]}}]}]`,
		`rules: [{from: [{source: {serviceAccounts: [a, b/c], trustDomains: ["*", "a*"], ipBlocks: ["1.2.3.4"]}}]}]`,
		`rules: [{from: [{source: {requestPrincipals: ["*", "a/*", "*/b", "*c", "d*", "/"], remoteIpBlocks: ["::1/8"]}}]}]`,
		`rules: [{to: [{operation: {paths: ["/{*}/a/{**}", "*", "a*"], hosts: ["*"], methods: ["*A"], notPorts: ["0"]}}]}]`,
		`rules: [{when: [{key: "request.headers[a]", values: ["*"], notValues: [b]}]}]`,
		`rules: [{when: [{key: "request.auth.claims[a][b]", values: [c]}, {key: connection.sni, values: ["*.a"]}]}]`,
		`rules: [{when: [{key: "experimental.envoy.filters.a[b]", values: ["[c]", "[*]", d]}]}]`,
		"action: CUSTOM\nprovider: {name: a}\nrules: [{to: [{operation: {paths: [/]}}]}]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec := &security.AuthorizationPolicy{}
		w := worldOf(object.AuthorizationPolicy, spec, text)
		if w == nil {
			return
		}
		node := model.Node{Namespace: "shop", Labels: spec.GetSelector().GetMatchLabels()}
		for _, p := range translate.AuthorizationPolicies(w, node).Problems {
			if strings.Contains(p.Message, "Envoy would refuse") {
				t.Errorf("%s\n%s", p, text)
			}
		}
	})
}

// worldOf returns a mesh with one object in the namespace shop, whose spec is decoded from text;
// nil if the spec is invalid.
func worldOf(kind object.Kind, spec proto.Message, text string) *model.Mesh {
	encoded, err := yaml.YAMLToJSON([]byte(text))
	if err != nil || protojson.Unmarshal(encoded, spec) != nil {
		return nil
	}
	o := &object.Object{Key: object.Key{Kind: kind, Namespace: "shop", Name: "a"}, Spec: spec}
	for _, finding := range validate.Object(o) {
		if finding.Severity == condition.Error {
			return nil
		}
	}
	w := model.NewMesh("cluster.local", mesh.Default())
	w.Apply([]object.Change{{New: o}})
	return w
}
