package discovery_test

// accessCase is a rule for requests to a port of its own, and the expected answers.
type accessCase struct {
	action string // action of the rule, ALLOW or DENY
	rule   string // PORT is replaced by the port of the case, ANY by an operation for that port
	// requests as "STATUS [CLIENT@]METHOD PATH [NAME=VALUE]…", see accessRequest
	requests []string
	tcp      bool // the port does not use HTTP; status "refused" means a closed connection
}

// accessCases are the rules of one workload. Requests that no ALLOW rule matches are denied. For
// each DENY rule, another rule allows everything on its port.
var accessCases = []accessCase{
	// rules with the field "to"
	{action: "DENY", rule: `{to: [{operation: {ports: [PORT], methods: [POST, "P*", "*E"]}}]}`,
		requests: []string{"200 GET /", "403 POST /", "403 PUT /", "403 DELETE /", "200 HEAD /"}},
	{action: "ALLOW", rule: `{to: [{operation: {ports: [PORT], notMethods: [POST]}}]}`,
		requests: []string{"200 GET /", "403 POST /"}},
	{action: "ALLOW", rule: `{to: [{operation: {ports: [PORT], methods: ["*"]}}]}`,
		requests: []string{"200 GET /"}},
	{action: "ALLOW",
		rule: `{to: [{operation: {ports: [PORT], paths: [/a, "/b*", "*/c", "/t/{*}/x", "/u/{**}"]}}]}`,
		requests: []string{"200 GET /a", "200 GET /a?q=1", "403 GET /a/", "200 GET /bc", "200 GET /x/c",
			"200 GET /t/1/x", "403 GET /t/1/2/x", "403 GET /t//x", "200 GET /u/1/2", "403 GET /",
			"403 GET /A", "200 GET /x/../a"}},
	{action: "DENY", rule: `{to: [{operation: {ports: [PORT], notPaths: ["/pub/{**}", /]}}]}`,
		requests: []string{"200 GET /", "200 GET /pub/a/b", "403 GET /private"}},
	{action: "ALLOW", rule: `{to: [{operation: {ports: [PORT], paths: ["*"]}}]}`,
		requests: []string{"200 GET /"}},
	{action: "ALLOW", rule: `{to: [{operation: {ports: [PORT], hosts: [a.test, "*.b.test", "c.*"]}}]}`,
		requests: []string{"200 GET / host=a.test", "200 GET / host=A.Test", "200 GET / host=x.b.test",
			"200 GET / host=c.test", "403 GET / host=d.test", "403 GET / host=a.test:80"}},
	{action: "ALLOW", rule: `{to: [{operation: {ports: [PORT], notHosts: [a.test]}}]}`,
		requests: []string{"403 GET / host=a.test", "200 GET / host=b.test"}},
	{action: "DENY", rule: `{to: [{operation: {notPorts: ["1"], ports: [PORT], paths: [/x]}}, ` +
		`{operation: {ports: [PORT], paths: [/y], methods: [GET]}}]}`,
		requests: []string{"403 GET /x", "403 GET /y", "200 PUT /y", "200 GET /z"}},
	// rules with the field "from"
	{action: "ALLOW", rule: `{ANY, from: [{source: {principals: [cluster.local/ns/bank/sa/client]}}]}`,
		requests: []string{"403 GET /", "200 bank@GET /", "200 alias@GET /", "403 shop@GET /"}},
	{action: "ALLOW",
		rule: `{ANY, from: [{source: {principals: ["cluster.local/ns/bank/*", "*/sa/web"]}}]}`,
		requests: []string{"403 GET /", "200 bank@GET /", "200 shop@GET /",
			"403 alias@GET /"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {principals: ["*"]}}]}`,
		requests: []string{"403 GET /", "200 bank@GET /"}},
	{action: "DENY", rule: `{ANY, from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/web]}}]}`,
		requests: []string{"403 GET /", "403 bank@GET /", "200 shop@GET /"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {namespaces: [bank]}}]}`,
		requests: []string{"403 GET /", "200 bank@GET /", "200 alias@GET /", "403 shop@GET /"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {notNamespaces: ["b*k"]}}]}`,
		requests: []string{"200 GET /", "403 bank@GET /", "200 shop@GET /"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {serviceAccounts: [shop/web, bank/client]}}]}`,
		requests: []string{"403 GET /", "200 bank@GET /", "200 shop@GET /", "200 alias@GET /"}},
	{action: "DENY", rule: `{ANY, from: [{source: {notServiceAccounts: [web]}}]}`,
		requests: []string{"403 GET /", "403 bank@GET /", "200 shop@GET /"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {trustDomains: [alias.example]}}]}`,
		requests: []string{"403 GET /", "200 bank@GET /", "200 alias@GET /"}},
	{action: "DENY", rule: `{ANY, from: [{source: {notTrustDomains: ["*.local"]}}]}`,
		requests: []string{"403 GET /", "200 bank@GET /", "403 alias@GET /"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {ipBlocks: [127.0.0.1, 10.8.0.0/16]}}]}`,
		requests: []string{"200 GET /", "200 GET / x-forwarded-for=203.0.113.7"}},
	{action: "DENY", rule: `{ANY, from: [{source: {notIpBlocks: ["203.0.113.0/24", "::1"]}}]}`,
		requests: []string{"403 GET /"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {remoteIpBlocks: [203.0.113.7]}}]}`,
		requests: []string{"403 GET /", "200 GET / x-forwarded-for=203.0.113.7",
			"403 GET / x-forwarded-for=203.0.113.8"}},
	{action: "DENY", rule: `{ANY, from: [{source: {notRemoteIpBlocks: [203.0.113.7]}}]}`,
		requests: []string{"403 GET /", "200 GET / x-forwarded-for=203.0.113.7"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {requestPrincipals: ["*"]}}]}`,
		requests: []string{"403 GET /"}},
	{action: "DENY", rule: `{ANY, from: [{source: {notRequestPrincipals: ["*"]}}]}`,
		requests: []string{"403 GET /"}},
	{action: "ALLOW", rule: `{ANY, from: [{source: {namespaces: [bank], ipBlocks: [1.2.3.4]}}, ` +
		`{source: {principals: ["*/sa/web"]}}]}`,
		requests: []string{"403 bank@GET /", "200 shop@GET /"}},
	// rules with the field "when"
	{action: "ALLOW", rule: `{ANY, when: [{key: "request.headers[x-who]", values: [me, "a*"], ` +
		`notValues: [ab]}]}`,
		requests: []string{"403 GET /", "200 GET / x-who=me", "200 GET / X-Who=aa",
			"403 GET / x-who=ab", "403 GET / x-who=ME"}},
	{action: "DENY", rule: `{ANY, when: [{key: "request.headers[x-who]", values: ["*"]}]}`,
		requests: []string{"200 GET /", "403 GET / x-who=me", "403 GET / x-who="}},
	{action: "ALLOW", rule: `{ANY, when: [{key: source.ip, values: [127.0.0.1, 10.8.0.1]}, ` +
		`{key: remote.ip, notValues: [203.0.113.7]}]}`,
		requests: []string{"200 GET /", "403 GET / x-forwarded-for=203.0.113.7"}},
	{action: "ALLOW", rule: `{ANY, when: [{key: source.namespace, values: [bank]}, ` +
		`{key: source.principal, notValues: [alias.example/ns/bank/sa/client]}]}`,
		requests: []string{"403 GET /", "403 bank@GET /", "403 alias@GET /"}},
	{action: "ALLOW", rule: `{ANY, when: [{key: source.serviceAccount, values: [bank/client]}, ` +
		`{key: source.trustDomain, values: [cluster.local]}]}`,
		requests: []string{"403 GET /", "200 bank@GET /", "200 alias@GET /"}},
	{action: "ALLOW", rule: `{when: [{key: destination.port, values: [PORT]}, ` +
		`{key: destination.ip, values: [127.0.0.0/8, 10.8.0.1]}]}`, requests: []string{"200 GET /"}},
	{action: "ALLOW", rule: `{ANY, when: [{key: destination.ip, notValues: [0.0.0.0/0]}]}`,
		requests: []string{"403 GET /"}},
	{action: "ALLOW", rule: `{ANY, when: [{key: connection.sni, values: ["sni.*"]}]}`,
		requests: []string{"403 GET /", "403 bank@GET /", "200 named@GET /"}},
	{action: "DENY", rule: `{ANY, when: [{key: request.auth.audiences, notValues: [a, b]}, ` +
		`{key: request.auth.presenter, notValues: ["*"]}, ` +
		`{key: "request.auth.claims[a][b]", notValues: [c]}]}`, requests: []string{"403 GET /"}},
	{action: "ALLOW", rule: `{ANY, when: [{key: request.auth.principal, values: [a/b]}]}`,
		requests: []string{"403 GET /"}},
	// matches the metadata in which the filter for the dry-run policy (dryRun) stores its result
	{action: "ALLOW", rule: `{ANY, when: [{key: "experimental.envoy.filters.http.rbac` +
		`[istio_dry_run_deny_shadow_effective_policy_id]", values: ["ns[shop]*"]}]}`,
		requests: []string{"403 GET /", "200 GET /dry"}},
	{action: "ALLOW", rule: `{ANY}`, requests: []string{"200 GET /", "200 GET /dry"}},
	// rules for ports without HTTP
	{tcp: true, action: "ALLOW", rule: `{ANY}`, requests: []string{"200 GET /", "200 bank@GET /"}},
	{tcp: true, action: "ALLOW", rule: `{to: [{operation: {ports: [PORT], methods: [GET]}}]}`,
		requests: []string{"refused GET /"}},
	{tcp: true, action: "ALLOW", rule: `{ANY, when: [{key: "request.headers[a]", notValues: [b]}]}`,
		requests: []string{"refused GET /"}},
	{tcp: true, action: "DENY", rule: `{to: [{operation: {ports: [PORT], methods: [PUT]}}]}`,
		requests: []string{"refused GET /"}},
	{tcp: true, action: "DENY", rule: `{to: [{operation: {ports: [PORT], paths: [/x]}}], ` +
		`from: [{source: {principals: ["*/sa/web"]}}]}`,
		requests: []string{"200 GET /", "200 bank@GET /", "refused shop@GET /"}},
	{tcp: true, action: "ALLOW", rule: `{ANY, from: [{source: {namespaces: [bank]}}]}`,
		requests: []string{"refused GET /", "200 bank@GET /"}},
	{tcp: true, action: "DENY", rule: `{ANY, from: [{source: {ipBlocks: [127.0.0.1, 10.8.0.1]}}]}`,
		requests: []string{"refused GET /"}},
	{tcp: true, action: "ALLOW", rule: `{ANY, from: [{source: {remoteIpBlocks: [0.0.0.0/0]}}]}`,
		requests: []string{"200 GET /"}},
}
