package validate_test

import (
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/validate"
)

func TestAuthorizationPolicy(t *testing.T) {
	ap := "AuthorizationPolicy"
	from := func(source string) string { return "rules: [{from: [{source: {" + source + "}}]}]" }
	to := func(operation string) string { return "rules: [{to: [{operation: {" + operation + "}}]}]" }
	when := func(condition string) string { return "rules: [{when: [{" + condition + "}]}]" }
	const custom = "action: CUSTOM\nprovider: {name: a}\n"
	testSpecs(t, []specCase{
		{ap, "{}", ""},
		{ap, "rules: [{}]", ""},
		{ap, "selector: {matchLabels: {app: a}}\naction: DENY\nrules: [{}]", ""},
		{ap, "selector: {}", "?selector: has no labels"},
		{ap, "selector: {matchLabels: {a: '*'}}", "!selector.matchLabels[\"a\"]: stands for itself"},
		{ap, "selector: {}\ntargetRef: {kind: Gateway, group: gateway.networking.k8s.io, name: a}",
			"!selector: only one of"},
		{ap, "targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: a}]", ""},
		{ap, "targetRefs: [{kind: Gateway, name: a}]", "!targetRefs[0].kind: is no target"},
		{ap, "targetRefs: [{kind: ServiceEntry, group: networking.istio.io, name: a}]",
			"?targetRefs[0]: only waypoint proxies"},
		{ap, "targetRef: {kind: Service, group: core, name: a}", "?targetRef: only waypoint proxies"},
		{ap, "targetRef: {kind: Gateway, group: gateway.networking.k8s.io}",
			"!targetRef.name: is missing"},
		{ap, "targetRef: {kind: Gateway, group: gateway.networking.k8s.io, name: a, namespace: b}",
			"!targetRef.namespace: own namespace"},
		{ap, "action: DENY", "!rules: DENY without rules"},
		{ap, "action: CUSTOM", "!rules: CUSTOM without rules"},
		{ap, "action: CUSTOM\nrules: [{}]", "!provider.name: is missing"},
		{ap, custom + "rules: [{}]", ""},
		{ap, "provider: {name: a}", "!provider: ALLOW has no provider"},
		{ap, custom + from("principals: [a]"), "!rules[0].from[0].source.principals: CUSTOM"},
		{ap, custom + from("notTrustDomains: [a]"), "!rules[0].from[0].source.notTrustDomains: CUSTOM"},
		{ap, custom + from("ipBlocks: [10.0.0.1]"), ""},
		{ap, custom + when("key: source.namespace, values: [a]"), "!rules[0].when[0].key: CUSTOM"},
		{ap, custom + when("key: source.serviceAccount, values: [a]"), "!rules[0].when[0].key: CUSTOM"},
		{ap, custom + when("key: source.trustDomain, values: [a]"), "!rules[0].when[0].key: CUSTOM"},
		{ap, custom + when("key: source.principal, values: [a]"), "!rules[0].when[0].key: CUSTOM"},
		{ap, custom + when("key: request.auth.audiences, values: [a]"),
			"!rules[0].when[0].key: CUSTOM"},
		{ap, custom + when("key: remote.ip, values: [10.0.0.1]"), ""},
		{ap, from(""), "!rules[0].from[0].source: no field with values"},
		{ap, "rules: [{from: [{}]}]", "!rules[0].from[0].source: no field with values"},
		{ap, to(""), "!rules[0].to[0].operation: no field with values"},
		{ap, from("principals: [a, '']"), "!rules[0].from[0].source.principals[1]: is empty"},
		{ap, from("ipBlocks: [10.0.0.0/8, '1::/16', '::1']"), ""},
		{ap, from("ipBlocks: [10.0.0]"), "!rules[0].from[0].source.ipBlocks[0]: no IP address"},
		{ap, from("notRemoteIpBlocks: [10.0.0.0/33]"),
			"!rules[0].from[0].source.notRemoteIpBlocks[0]: no IP address"},
		{ap, from("serviceAccounts: [a, b/c]"), ""},
		{ap, from("serviceAccounts: [a/]"), "!rules[0].from[0].source.serviceAccounts[0]: no service account"},
		{ap, from("serviceAccounts: [a/b/c]"), "!rules[0].from[0].source.serviceAccounts[0]: no service account"},
		{ap, from("notServiceAccounts: ['*']"),
			"!rules[0].from[0].source.notServiceAccounts[0]: no service account"},
		{ap, from("serviceAccounts: [a], notNamespaces: [b]"),
			"!rules[0].from[0].source.serviceAccounts: excludes principals"},
		{ap, from("serviceAccounts: [" + strings.Repeat("a, ", 16) + "a]"),
			"!rules[0].from[0].source.serviceAccounts: more than the 16"},
		{ap, from("trustDomains: ['*', 'a*', '*b']"), ""},
		{ap, from("trustDomains: ['a*b']"), "!rules[0].from[0].source.trustDomains[0]: one *"},
		{ap, from("trustDomains: [a/b]"), "!rules[0].from[0].source.trustDomains[0]: no trust domain"},
		{ap, from("namespaces: [" + strings.Repeat("a", 8193) + "]"),
			"!rules[0].from[0].source.namespaces[0]: longer than"},
		{ap, to("ports: ['0', '65535']"), ""},
		{ap, to("ports: ['65536']"), "!rules[0].to[0].operation.ports[0]: not a valid port"},
		{ap, to("notPorts: [http]"), "!rules[0].to[0].operation.notPorts[0]: not a valid port"},
		{ap, to("paths: ['/a/{*}/b/{**}', '/a{', '/x*']"), "!rules[0].to[0].operation.paths[1]: no path template"},
		{ap, to("paths: ['/{**}/{*}']"), "!rules[0].to[0].operation.paths[0]: can follow {**}"},
		{ap, to("paths: ['/{*}/', '/a/{**}/']"), ""},
		{ap, to("paths: ['{*}/a']"), "!rules[0].to[0].operation.paths[0]: begins without /"},
		{ap, to("paths: ['//{*}']"), "!rules[0].to[0].operation.paths[0]: no path template"},
		{ap, to("paths: ['/{*}//']"), "!rules[0].to[0].operation.paths[0]: no path template"},
		{ap, to("notPaths: ['/{*}/a b']"), "!rules[0].to[0].operation.notPaths[0]: no path template"},
		{ap, when("key: ''"), "!rules[0].when[0].key: is missing"},
		{ap, when("key: source.port, values: ['1']"), "!rules[0].when[0].key: no attribute"},
		{ap, when("key: source.ip"), "!rules[0].when[0].values: is missing"},
		{ap, when("key: source.ip, values: [a]"), "!rules[0].when[0].values[0]: no IP address"},
		{ap, when("key: destination.port, notValues: [a]"), "!rules[0].when[0].notValues[0]: not a valid port"},
		{ap, when("key: 'request.headers[x-a]', values: [a]"), ""},
		{ap, when("key: 'request.headers[]', values: [a]"), "!rules[0].when[0].key: no name in brackets"},
		{ap, when("key: 'request.auth.claims[a][b]', values: [a]"), ""},
		{ap, when("key: 'request.auth.claims[a][]', values: [a]"), "!rules[0]: Envoy would refuse it"},
		{ap, when("key: 'request.auth.claimsx[a]', values: [a]"), "!rules[0].when[0].key: no name in brackets"},
		{ap, when("key: 'experimental.envoy.filters.http.x[y]', values: ['[a]', b]"), ""},
		{ap, "action: DENY\n" + to("methods: [GET]"), "?rules[0]: denies, on ports without HTTP"},
		{ap, "action: DENY\n" + to("methods: [GET], ports: ['80']"), ""},
		{ap, "action: DENY\n" + from("requestPrincipals: ['*']"), "?rules[0]: denies, on ports without HTTP"},
		{ap, "action: DENY\n" + from("requestPrincipals: ['*'], ipBlocks: [10.0.0.1]"), ""},
	})
}

func TestAuthorizationPolicy_DryRun(t *testing.T) {
	for _, test := range []struct {
		value  string
		action security.AuthorizationPolicy_Action
		fails  bool
	}{
		{"true", security.AuthorizationPolicy_ALLOW, false},
		{"0", security.AuthorizationPolicy_DENY, false},
		{"maybe", security.AuthorizationPolicy_ALLOW, true},
		{"true", security.AuthorizationPolicy_AUDIT, true},
	} {
		findings := validate.Object(&object.Object{
			Annotations: map[string]string{object.DryRunAnnotation: test.value},
			Spec: &security.AuthorizationPolicy{Action: test.action,
				Rules: []*security.Rule{{}}}})
		if fails := len(findings) > 0 && findings[0].Severity == condition.Error; fails != test.fails {
			t.Errorf("%+v: %v", test, findings)
		}
	}
}
