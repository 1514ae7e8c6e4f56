package examples

// kinds are the objects that mesh.d may contain, in the order of the page.
var kinds = []struct{ name, text string }{
	{"Gateway", "Where this host listens: ports, host names, TLS. Nginx: `listen`,\n" +
		"`server_name`, `ssl_certificate`. Protocols: HTTP, HTTPS, HTTP2, GRPC, TCP,\n" +
		"TLS. TLS modes: SIMPLE, MUTUAL, OPTIONAL_MUTUAL, PASSTHROUGH, and ISTIO_MUTUAL\n" +
		"for clients with a certificate of the mesh. Certificates\n" +
		"are files that the user outrider-envoy can read, or credentials (see above);\n" +
		"renewed ones are used about a second after certificate and key are both\n" +
		"replaced. Port names are unique within a Gateway: hosts with certificates of\n" +
		"their own are servers with one port number and two names. Without a selector a Gateway\n" +
		"is for every host that reads the file, with one for those whose [node]\n" +
		"labels match. It needs type = \"router\" in [node]. `bind` is the address of a\n" +
		"server, 0.0.0.0 (every IPv4 address) by default; for IPv6 add a server with\n" +
		"the same port and bind: \"::\" (every IPv6 address) or an address of the host."},
	{"VirtualService", "Which request goes where: match, weights, rewrite, redirect, direct\n" +
		"response, headers, timeout, retries, mirror, fault, CORS; TLS by server\n" +
		"name; TCP. Nginx: `location`, `proxy_pass`, `rewrite`, `return`,\n" +
		"`split_clients`. Its `gateways` names the Gateways that it belongs to. The\n" +
		"first match wins. Weights are relative: 9 and 1 are 90 % and 10 %. Without\n" +
		"`retries` a request is tried up to twice more if its connection fails or the\n" +
		"server refuses it (gRPC: unavailable, cancelled), as with Istio;\n" +
		"`retries: {attempts: 0}` turns this off."},
	{"ServiceEntry", "The servers behind: a name for them, their ports, their addresses. Nginx:\n" +
		"`upstream`. With resolution STATIC the endpoints are addresses, with\n" +
		"resolution DNS they are names."},
	{"DestinationRule", "How servers are talked to: subsets, load balancing, connection limits,\n" +
		"outlier detection, TLS to the server. Nginx: `least_conn`, `max_fails`,\n" +
		"`proxy_ssl_name`."},
	{"WorkloadEntry", "One server as an object of its own, for a ServiceEntry with a\n" +
		"`workloadSelector`."},
	{"Sidecar", "For type = \"sidecar\" (the default): which services the application on this\n" +
		"host reaches, on which ports of loopback, and which ports of the application\n" +
		"are reached from outside."},
	{"PeerAuthentication", "Whether connections to the application need mutual TLS: STRICT, " +
		"PERMISSIVE\n(both are accepted) or DISABLE; see MUTUAL TLS."},
	{"RequestAuthentication", "Which tokens (JWT) requests may have: issuers, audiences, the " +
		"keys, and in\nwhich headers, parameters or cookies a token is. A request with an invalid token\n" +
		"gets 401 (403 for a wrong audience), one without a token passes. It is for the\n" +
		"HTTP ports of a Gateway, of a Sidecar's ingress and, with interception, of every\n" +
		"application of the host. A VirtualService of a Gateway matches claims as headers:\n" +
		"`\"@request.auth.claims.group\"` or `\"@request.auth.claims[group][name]\"`. The\n" +
		"agent fetches `jwksUri`, or what the issuer's OpenID configuration names, every 20\n" +
		"minutes. While that fails, the last keys remain in use, also after a restart; until\n" +
		"it succeeded once, all tokens of the issuer get 401; condition\n" +
		"key-set-unavailable names both. A server at a loopback, link-local or metadata\n" +
		"address is asked only if a ServiceEntry has its host or address."},
	{"AuthorizationPolicy", "Who may send requests or connect: ALLOW, DENY, AUDIT, and CUSTOM, " +
		"which asks\nan authorizer of `extensionProviders` in mesh_config_file (envoyExtAuthzHttp or\n" +
		"envoyExtAuthzGrpc). It guards the ports of a Gateway, of a Sidecar's ingress and,\n" +
		"with interception, of every application of the host; not what goes out. If any\n" +
		"policy with ALLOW selects the proxy, what none of them allows is denied (403).\n" +
		"On ports without HTTP, a rule for requests (methods, paths, hosts, headers, tokens)\n" +
		"allows nothing, and with DENY it denies what its other fields match. principals,\n" +
		"namespaces and serviceAccounts need mutual TLS, behind other proxies `remoteIpBlocks`\n" +
		"needs numTrustedProxies (example trusted-proxies). The annotation\n" +
		"`istio.io/dry-run: \"true\"` counts what a policy would deny (metric\n" +
		"`envoy_http_rbac`, `authz_dry_run_result=\"denied\"`) and denies nothing.\n" +
		"targetRefs select proxies with the label\n" +
		"gateway.networking.k8s.io/gateway-name (`labels` in [node]). Nginx: `allow`, `deny`."},
	{"WasmPlugin", "A Wasm module that Envoy runs for requests (`type: NETWORK`: connections), in the\n" +
		"phase AUTHN, AUTHZ or STATS, or before routing, by `priority`. `match` names mode and\n" +
		"ports. `url` is file:// (read by the agent, again when it changes), https://, http:// or\n" +
		"oci://, the last with `imagePullSecret: NAME`: the credential NAME with the file\n" +
		".dockerconfigjson. The agent fetches it beside everything else, and keeps it over a\n" +
		"restart. A new plugin takes effect once its module is there. If it cannot be fetched,\n" +
		"and at a start of the agent, everything that the plugin is for is denied; with\n" +
		"`failStrategy: FAIL_OPEN` it passes without the plugin. In the phases AUTHN and AUTHZ that\n" +
		"is so only while the module's code fails. A changed plugin whose module is missing or cut\n" +
		"off, or refused by Envoy, leaves the former one in force.\n" +
		"With an upstream server, a new one with `FAIL_OPEN` whose module cannot be fetched leaves\n" +
		"the listeners of before in force.\n" +
		"mesh-problems says why. A server at a loopback, link-local or metadata address is\n" +
		"asked only if a ServiceEntry has its host or address. Its apiVersion is\n" +
		"extensions.istio.io/v1alpha1."},
	{"TrafficExtension", "A Wasm module (`wasm`, with the fields of a WasmPlugin), or Lua code\n" +
		"(`lua.inlineCode`, for requests), in the phases and with the `priority` and `match` of a\n" +
		"WasmPlugin. Code that Envoy refuses is as a module that cannot be fetched; without Lua\n" +
		"code requests pass, except in the phases AUTHN and AUTHZ. The former code remains in\n" +
		"force, unless the change is one between HTTP and NETWORK, from or to the phases AUTHN\n" +
		"and AUTHZ, or from or to FAIL_OPEN. The filters in Envoy have Istio's names with\n" +
		"`~network`, `~restricts` and `~fail-open` appended accordingly. EnvoyFilters match them\n" +
		"by Istio's names, too; `typed_per_filter_config` needs the whole name. Its apiVersion\n" +
		"is extensions.istio.io/v1alpha1."},
	{"EnvoyFilter", "A patch of the resources that Outrider makes for Envoy, for what the other\n" +
		"kinds cannot say: compression, limits, passwords, error pages,\n" +
		"health checks, the PROXY protocol (see EXAMPLES). Nginx: `gzip`, `limit_req`,\n" +
		"`auth_basic`, `error_page`. Its apiVersion is networking.istio.io/v1alpha3.\n" +
		"BOOTSTRAP is refused: use `bootstrap_override` in [envoy].\n" +
		"A field or value that Envoy does not have is an error with its line, also in any\n" +
		"`typed_config` and TypedStruct; a deprecated one is a warning that says whether\n" +
		"Envoy refuses it. A type that Outrider does not know, such as one of contrib, is a\n" +
		"warning: Envoy alone checks it. If Envoy is newer than the API that Outrider\n" +
		"knows, what is unknown is a warning, too."},
	{"Telemetry", "Access logs (file, OpenTelemetry, gRPC) and traces (OpenTelemetry, Zipkin, Datadog,\n" +
		"SkyWalking), by host and direction, to providers of `extensionProviders` in\n" +
		"mesh_config_file. A log has a filter in CEL. Without a selector it is for all hosts\n" +
		"of its namespace. Nginx: `access_log`, `log_format`. The file of `access_log_file` in\n" +
		"[telemetry] is written as well.\n" +
		"Istio's metrics (istio_requests_total and so on, at port 15020), if a Telemetry or\n" +
		"defaultProviders of MeshConfig names the provider `prometheus`. Envoy knows of a\n" +
		"caller only its certificate: at a server source_workload, source_app,\n" +
		"source_version, source_cluster and source_canonical_service are `unknown`. It does\n" +
		"not count the messages of gRPC, and the bytes of a connection once it ends."},
	{"WorkloadGroup", "The template of workloads that register themselves with outrider-discoveryd\n" +
		"([registration]). Elsewhere it has no effect, and a warning says so."},
	{"ProxyConfig", "The number of Envoy's workers (`concurrency`) and variables of its " +
		"environment, for\nthe hosts of a namespace or those with matching [node] labels; `defaultConfig` of\n" +
		"MeshConfig (`concurrency`, `proxyMetadata`) is the default. A change starts a new epoch.\n" +
		"`concurrency` in [envoy] precedes. LD_*, GLIBC_TUNABLES and PATH are refused. With an\n" +
		"upstream server it has no effect, since Istio applies it when it injects a proxy. Its\n" +
		"apiVersion is networking.istio.io/v1beta1. Fewer workers lose no connection if\n" +
		"net.ipv4.tcp_migrate_req is 1, which the package sets (/usr/lib/sysctl.d) except in\n" +
		"network namespaces of your own; otherwise the kernel resets those that wait for a\n" +
		"surplus worker."},
}
