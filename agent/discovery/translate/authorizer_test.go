package translate_test

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
)

func TestAuthorize_DeniesWithoutThePortOfAnAuthorizer(t *testing.T) {
	m, _ := meshtest.New(t, `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: authz, namespace: foo}
spec:
  hosts: [authz.test]
  resolution: STATIC
  ports: [{number: 8000, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: foo}
spec: {action: CUSTOM, provider: {name: a}, rules: [{}]}
`)
	config, problems := meshfile.Parse("mesh", []byte(`extensionProviders:
- name: a
  envoyExtAuthzHttp: {service: authz.test, port: 9999, failOpen: true}
`))
	if config == nil {
		t.Fatal(problems)
	}
	m.SetMeshConfig(config)
	got := translate.AuthorizationPolicies(m.Mesh, model.Node{Namespace: "foo"})
	if len(got.Problems) != 1 || !strings.Contains(got.Problems[0].Message, "has no port 9999") {
		t.Errorf("problems: %v", got.Problems)
	}
	if len(got.ExtAuthzHTTP) != 1 || !strings.Contains(got.ExtAuthzHTTP[0].Name, "rbac") {
		t.Errorf("the authorizer that cannot be asked is not replaced by a denial: %v",
			got.ExtAuthzHTTP)
	}
}
