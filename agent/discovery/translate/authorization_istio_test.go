package translate_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"

	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/scripts/parts"
)

// authorizerEntry is the service of the providers in Istio's test data.
const authorizerEntry = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: authorizer, namespace: foo}
spec: {hosts: [my-custom-ext-authz.foo.svc.cluster.local], resolution: STATIC, ports: [{number: 9000, name: p, protocol: GRPC}], endpoints: [{address: 10.0.0.9}]}
`

// MeshConfigs that Istio's tests of its authorization builder use.
const (
	grpcProvider = `extensionProviders:
- name: default
  envoyExtAuthzGrpc: {service: foo/my-custom-ext-authz.foo.svc.cluster.local, port: 9000, timeout: 0.002s, failOpen: true,
    statusOnError: "403", includeRequestBodyInCheck: {maxRequestBytes: 4096, allowPartialMessage: true}}
`
	bareGRPCProvider = `extensionProviders:
- name: default
  envoyExtAuthzGrpc: {service: my-custom-ext-authz.foo.svc.cluster.local, port: 9000, failOpen: true, statusOnError: "403"}
`
	httpProvider = `extensionProviders:
- name: default
  envoyExtAuthzHttp:
    service: foo/my-custom-ext-authz.foo.svc.cluster.local
    port: 9000
    timeout: 10s
    failOpen: true
    statusOnError: "403"
    pathPrefix: /check
    includeRequestHeadersInCheck: [x-custom-id, x-prefix-*, "*-suffix"]
    includeHeadersInCheck: [should-not-include-when-IncludeRequestHeadersInCheck-is-set]
    includeAdditionalHeadersInCheck: {x-header-1: value-1, x-header-2: value-2}
    includeRequestBodyInCheck: {maxRequestBytes: 2048, allowPartialMessage: true, packAsBytes: true}
    headersToUpstreamOnAllow: [Authorization, x-prefix-*, "*-suffix"]
    headersToDownstreamOnDeny: [Set-cookie, x-prefix-*, "*-suffix"]
    headersToDownstreamOnAllow: [Set-cookie, x-prefix-*, "*-suffix"]
`
)

// TestAuthorize_EqualsIstio translates the test data of Istio's authorization builder. For each
// file with policies, the filters must be those that Istio expects.
func TestAuthorize_EqualsIstio(t *testing.T) {
	source, err := parts.IstioSourceDir()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(source, "pilot", "pkg", "security", "authz", "builder", "testdata")
	for _, test := range []struct{ in, meshConfig, out string }{
		{"http/allow-empty-rule", "", ""},
		{"http/allow-full-rule", "", ""},
		{"http/allow-nil-rule", "", ""},
		{"http/allow-path", "", ""},
		{"http/audit-full-rule", "", ""},
		{"http/custom-bad-multiple-providers", httpProvider, ""},
		{"http/custom-simple-http", "", "custom-bad"},
		{"http/custom-simple-http", bareGRPCProvider, "custom-grpc-provider-no-namespace"},
		{"http/custom-simple-http", grpcProvider, "custom-grpc-provider"},
		{"http/custom-simple-http", httpProvider, "custom-http-provider"},
		{"http/deny-and-allow", "", ""},
		{"http/deny-empty-rule", "", ""},
		{"http/dry-run-allow-and-deny", "", ""},
		{"http/dry-run-allow", "", ""},
		{"http/dry-run-mix", "", ""},
		{"http/multiple-policies", "", ""},
		{"http/simple-policy-multiple-td-aliases",
			"{trustDomain: td1, trustDomainAliases: [cluster.local, some-td]}", ""},
		{"http/simple-policy-principal-with-wildcard",
			"{trustDomain: td1, trustDomainAliases: [foobar]}", ""},
		{"http/simple-policy-td-aliases",
			"{trustDomain: td1, trustDomainAliases: [cluster.local]}", ""},
		{"http/single-policy", "", ""},
		{"http/td-aliases-source-principal",
			"{trustDomain: new-td, trustDomainAliases: [old-td, some-trustdomain]}", ""},
		{"http/trust-domains", "", ""},
		{"tcp/allow-both-http-tcp", "", ""},
		{"tcp/allow-only-http", "", ""},
		{"tcp/audit-both-http-tcp", "", ""},
		{"tcp/custom-both-http-tcp", grpcProvider, ""},
		{"tcp/custom-only-http", httpProvider, "nothing"},
		{"tcp/deny-both-http-tcp", "", ""},
		{"tcp/dry-run-mix", "", ""},
	} {
		t.Run(test.in+" "+test.out, func(t *testing.T) {
			in, err := os.ReadFile(filepath.Join(folder, test.in+"-in.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			m, _ := meshtest.New(t, "")
			config, problems := meshfile.Parse("mesh", []byte(test.meshConfig))
			if config == nil {
				t.Fatal(problems)
			}
			m.SetAllowingWarnings(string(in) + "\n" + authorizerEntry)
			m.SetMeshConfig(config)
			got := translate.AuthorizationPolicies(m.Mesh, model.Node{Namespace: "foo",
				Labels: map[string]string{"app": "httpbin", "version": "v1"}})
			tcp := strings.HasPrefix(test.in, "tcp/")
			out := filepath.Join(folder, test.in)
			if test.out != "" {
				out = filepath.Join(filepath.Dir(out), test.out)
			}
			var all []proto.Message
			for _, f := range append(got.ExtAuthzHTTP, got.RBACHTTP...) {
				if !tcp {
					all = append(all, f)
				}
			}
			for _, f := range append(got.ExtAuthzNetwork, got.RBACNetwork...) {
				if tcp {
					all = append(all, f)
				}
			}
			if d := cmp.Diff(expected(t, out, tcp), all, protocmp.Transform()); d != "" {
				t.Errorf("-Istio +Outrider\n%s", d)
			}
		})
	}
}

// expected reads the filters that Istio expects, from one file or several numbered ones.
func expected(t *testing.T, out string, tcp bool) []proto.Message {
	t.Helper()
	files, err := filepath.Glob(out + "-out*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []proto.Message
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var filter proto.Message = &hcmv3.HttpFilter{}
		if tcp {
			filter = &listenerv3.Filter{}
		}
		var tree any
		if err := yaml.Unmarshal(text, &tree); err != nil {
			t.Fatal(err)
		}
		text, err = json.Marshal(undeprecated(tree))
		if err == nil {
			err = protojson.Unmarshal(text, filter)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, filter)
	}
	return all
}

// undeprecated replaces the deprecated field metadata of permissions and principals by its
// successor.
func undeprecated(tree any) any {
	switch tree := tree.(type) {
	case map[string]any:
		for key, value := range tree {
			tree[key] = undeprecated(value)
		}
		if matcher, ok := tree["metadata"]; ok {
			delete(tree, "metadata")
			tree["sourcedMetadata"] = map[string]any{"metadataMatcher": matcher}
		}
	case []any:
		for i := range tree {
			tree[i] = undeprecated(tree[i])
		}
	}
	return tree
}
