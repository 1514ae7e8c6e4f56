package validate_test

import "testing"

// TestSpecs_EnvoyFilter checks specs of EnvoyFilters as TestSpecs does.
func TestSpecs_EnvoyFilter(t *testing.T) {
	const ef = "EnvoyFilter"
	patched := func(patch string) string { return "configPatches: [{" + patch + "}]" }
	testSpecs(t, []specCase{
		{ef, patched("applyTo: CLUSTER, patch: {operation: ADD, value: {name: a, type: STRICT_DSN, connect_timeout: 1m}}"), "!configPatches[0].patch.value.type: STRICT_DNS"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: ADD, value: {name: a, connect_timeout: 500ms, dns_refresh_rate: 1m}}"), ""},
		{ef, patched("applyTo: CLUSTER, patch: {operation: MERGE, value: {load_assignment: {endpoints: [{priority: -1}]}, lb_policy: MAGIC}}"), "!configPatches[0].patch.value.load_assignment.endpoints[0].priority: out of range"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: MERGE, value: {load_assignment: {endpoints: [{priority: -1}]}, lb_policy: MAGIC}}"), "!configPatches[0].patch.value.lb_policy: MAGIC"},
		{ef, patched("applyTo: NETWORK_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: a, stream_idle_timeout: 500ms, no_such_field: 1}}}"), "?configPatches[0].patch.value.typed_config.no_such_field: no field"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {}}}"), "!configPatches[0].patch.value.typed_config: has no @type"},
		{ef, "{}", ""},
		{ef, patched("applyTo: CLUSTER, patch: {operation: ADD, value: {name: lua_cluster}}"), ""},
		{ef, "targetRefs: [{kind: Gateway, name: x}]", "!targetRefs: Kubernetes Gateway API"},
		{ef, "workloadSelector: {}", "?workloadSelector: every workload"},
		{ef, "workloadSelector: {labels: {'a*': b}}", "!workloadSelector.labels: no label"},
		{ef, patched("patch: {operation: REMOVE}"), "!configPatches[0].applyTo: is missing"},
		{ef, patched("applyTo: CLUSTER"), "!configPatches[0].patch: is missing"},
		{ef, patched("applyTo: CLUSTER, patch: {}"), "!configPatches[0].patch.operation: is missing"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: MERGE}"), "!configPatches[0].patch.value: is missing"},
		{ef, patched("applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {admin: {}}}"), "!configPatches[0].applyTo: bootstrap_override"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: MERGE, value: {no_such_field: 1}}"), "?configPatches[0].patch.value.no_such_field: no field"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: soon}}"), "!configPatches[0].patch.value.connect_timeout: no duration"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {'@type': nonsense}}}"), "!configPatches[0].patch.value: is no type"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {'@type': type.googleapis.com/envoy.config.filter.http.lua.v2.Lua}}}"), "!configPatches[0].patch.value: is gone"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {'@type': type.googleapis.com/udpa.type.v1.TypedStruct}}}"), "!configPatches[0].patch.value: without type_url"},
		{ef, patched("applyTo: CLUSTER, match: {proxy: {proxyVersion: '('}}, patch: {operation: REMOVE}"), "!configPatches[0].match.proxy.proxyVersion: no regular expression"},
		{ef, patched("applyTo: CLUSTER, match: {proxy: {metadata: {NAME: a}}}, patch: {operation: REMOVE}"), "?configPatches[0].match.proxy.metadata: one proxy alone"},
		{ef, patched("applyTo: CLUSTER, match: {listener: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match: found by cluster"},
		{ef, patched("applyTo: LISTENER, match: {cluster: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match: found by listener"},
		{ef, patched("applyTo: VIRTUAL_HOST, match: {cluster: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match: found by routeConfiguration"},
		{ef, patched("applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {}}}}, patch: {operation: REMOVE}"), "!configPatches[0].match.listener.filterChain.filter.name: is missing"},
		{ef, patched("applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: a, subFilter: {name: b}}}}}, patch: {operation: REMOVE}"), "!configPatches[0].match.listener.filterChain.filter.subFilter: HTTP_FILTER only"},
		{ef, patched("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: a, subFilter: {name: b}}}}}, patch: {operation: REMOVE}"), "!configPatches[0].match.listener.filterChain.filter.name: connection manager"},
		{ef, patched("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.http_connection_manager}}}}, patch: {operation: ADD, value: {name: a}}"), "?configPatches[0].match.listener.filterChain.filter.name: name of old"},
		{ef, patched("applyTo: LISTENER, match: {listener: {portName: a}}, patch: {operation: REMOVE}"), "?configPatches[0].match.listener.portName: no effect"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: REMOVE}"), "?configPatches[0].patch.operation: names the filter"},
		{ef, patched("applyTo: ROUTE_CONFIGURATION, patch: {operation: REMOVE}"), "?configPatches[0].patch.operation: does nothing"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: ADD, value: {name: a}, filterClass: AUTHZ}"), "?configPatches[0].patch.filterClass: not carried out"},
		{ef, patched("applyTo: CLUSTER, match: {context: WAYPOINT, waypoint: {}}, patch: {operation: REMOVE}"), "?configPatches[0].match.context: no waypoints"},
		{ef, patched("applyTo: CLUSTER, match: {context: WAYPOINT, cluster: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match: only waypoint"},
		{ef, patched("applyTo: CLUSTER, match: {context: GATEWAY, waypoint: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match.waypoint: context WAYPOINT"},
		{ef, patched("applyTo: CLUSTER, match: {context: WAYPOINT, waypoint: {portNumber: 65536}}, patch: {operation: REMOVE}"), "!configPatches[0].match.waypoint.portNumber: not a valid port"},
	})
}
