package validate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/patch"
)

// longestVersion bounds the length of the regular expression for proxy versions, as in Istio.
const longestVersion = 1024

func (c *checker) envoyFilter(o *object.Object, f *networking.EnvoyFilter) {
	if len(f.TargetRefs) > 0 {
		c.fail("targetRefs", "belongs to the Kubernetes Gateway API and is not carried out",
			"write workloadSelector")
	}
	if f.WorkloadSelector != nil {
		c.labels("workloadSelector.labels", f.WorkloadSelector.Labels)
		if len(f.WorkloadSelector.Labels) == 0 {
			c.warn("workloadSelector",
				"has no labels and so selects every workload of the namespace",
				"write labels or remove it")
		}
	}
	sound := true
	for i, p := range f.ConfigPatches {
		sound = c.configPatch(fmt.Sprintf("configPatches[%d]", i), p) && sound
	}
	if sound {
		_, findings := patch.Parse(o)
		c.findings = append(c.findings, findings...)
	}
}

// configPatch checks an element of configPatches, and reports whether its value can be decoded.
func (c *checker) configPatch(field string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) bool {
	operation := p.GetPatch().GetOperation()
	switch {
	case p.GetApplyTo() == networking.EnvoyFilter_BOOTSTRAP:
		c.fail(field+".applyTo", "the bootstrap is not made by the discovery server",
			"put the patch into a file and name it in outrider.toml as [envoy] bootstrap_override")
		return false
	case p.GetApplyTo() == networking.EnvoyFilter_INVALID:
		c.fail(field+".applyTo", "is missing", "write what is patched, for example HTTP_FILTER")
		return false
	case p.Patch == nil:
		c.fail(field+".patch", "is missing", "write operation and value")
		return false
	case operation == networking.EnvoyFilter_Patch_INVALID:
		c.fail(field+".patch.operation", "is missing", "write for example MERGE")
		return false
	case operation != networking.EnvoyFilter_Patch_REMOVE && p.Patch.Value == nil:
		c.fail(field+".patch.value", fmt.Sprintf("is missing, and %s needs one", operation),
			"write what is patched in")
		return false
	}
	if p.Patch.FilterClass != networking.EnvoyFilter_Patch_UNSPECIFIED {
		c.without(field + ".patch.filterClass")
	}
	c.patchMatch(field+".match", p)
	c.patchEffect(field+".patch.operation", p)
	return true
}

func (c *checker) patchMatch(field string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	match := p.Match
	if match.GetContext() == networking.EnvoyFilter_WAYPOINT {
		if match.GetWaypoint() == nil {
			c.fail(field, "only waypoint can be matched in the context WAYPOINT",
				"write waypoint, {} for all")
		}
		if port := match.GetWaypoint().GetPortNumber(); port > highestPort {
			c.port(field+".waypoint.portNumber", port)
		}
		c.warn(field+".context", "there are no waypoints: the patch has no effect",
			"write SIDECAR_INBOUND, SIDECAR_OUTBOUND or GATEWAY")
		return
	}
	if match.GetWaypoint() != nil {
		c.fail(field+".waypoint", "can only be matched in the context WAYPOINT",
			"match listener, routeConfiguration or cluster")
		return
	}
	c.proxyMatch(field+".proxy", match.GetProxy())
	if match.GetObjectTypes() == nil {
		return
	}
	var wanted string
	var set bool
	switch p.ApplyTo {
	case networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_FILTER_CHAIN,
		networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER,
		networking.EnvoyFilter_LISTENER_FILTER:
		wanted, set = "listener", match.GetListener() != nil
		if set {
			c.listenerMatch(field+".listener", p.ApplyTo, match.GetListener())
		}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST,
		networking.EnvoyFilter_HTTP_ROUTE:
		wanted, set = "routeConfiguration", match.GetRouteConfiguration() != nil
	case networking.EnvoyFilter_CLUSTER:
		wanted, set = "cluster", match.GetCluster() != nil
	default:
		c.warn(field, fmt.Sprintf("what is matched has no effect on %s", p.ApplyTo), "remove it")
		return
	}
	if !set {
		c.fail(field, fmt.Sprintf("%s is found by %s, and something else is matched", p.ApplyTo,
			wanted), "write "+wanted)
	}
}

func (c *checker) proxyMatch(field string, proxy *networking.EnvoyFilter_ProxyMatch) {
	if expression := proxy.GetProxyVersion(); len(expression) > longestVersion {
		c.warn(field+".proxyVersion",
			fmt.Sprintf("is longer than %d characters and so matches no proxy", longestVersion),
			"shorten it")
	} else if _, err := regexp.Compile(expression); err != nil {
		c.fail(field+".proxyVersion", fmt.Sprintf("%q is no regular expression: %v", expression,
			err), `write one such as ^1\.30.*`)
	}
	for key := range proxy.GetMetadata() {
		if model.IsPerProxyMetadataKey(key) {
			c.warn(field+".metadata",
				fmt.Sprintf("%s is of one proxy alone and is not compared: the patch has no effect",
					key), "write workloadSelector")
		}
	}
}

func (c *checker) listenerMatch(field string, to networking.EnvoyFilter_ApplyTo,
	match *networking.EnvoyFilter_ListenerMatch) {
	if match.PortName != "" {
		c.without(field + ".portName")
	}
	if match.ListenerFilter != "" && to != networking.EnvoyFilter_LISTENER_FILTER {
		c.warn(field+".listenerFilter", fmt.Sprintf("has no effect on %s", to), "remove it")
	}
	if match.FilterChain != nil && (to == networking.EnvoyFilter_LISTENER ||
		to == networking.EnvoyFilter_LISTENER_FILTER) {
		c.warn(field+".filterChain", fmt.Sprintf("has no effect on %s", to), "remove it")
	}
	filter := match.GetFilterChain().GetFilter()
	if filter == nil {
		return
	}
	field += ".filterChain.filter"
	if to == networking.EnvoyFilter_FILTER_CHAIN {
		c.warn(field, "has no effect on FILTER_CHAIN", "remove it")
	}
	sub := filter.SubFilter
	switch {
	case filter.Name == "":
		c.fail(field+".name", "is missing", "write the filter's name")
	case sub == nil:
	case to != networking.EnvoyFilter_HTTP_FILTER:
		c.fail(field+".subFilter", "is for HTTP_FILTER only", "remove it")
	case filter.Name != "envoy.filters.network.http_connection_manager" &&
		filter.Name != "envoy.http_connection_manager":
		c.fail(field+".name", "only the HTTP connection manager has filters inside",
			"write envoy.filters.network.http_connection_manager")
	case sub.Name == "":
		c.fail(field+".subFilter.name", "is missing", "write the filter's name")
	}
	c.filterName(field+".name", filter.Name)
	c.filterName(field+".subFilter.name", sub.GetName())
}

// filterName warns of names that filters had before they were called envoy.filters.*. Translated
// filters never have them.
func (c *checker) filterName(field, name string) {
	if strings.HasPrefix(name, "envoy.") && !strings.HasPrefix(name, "envoy.filters.") &&
		!strings.HasPrefix(name, "envoy.wasm") {
		c.warn(field, fmt.Sprintf("%s is a name of old: no filter is called so", name),
			"write the name that begins with envoy.filters.")
	}
}

// operations lists, for each kind of patch, the operations with an effect, other than adding.
var operations = map[networking.EnvoyFilter_ApplyTo][]networking.EnvoyFilter_Patch_Operation{
	networking.EnvoyFilter_LISTENER: {networking.EnvoyFilter_Patch_MERGE,
		networking.EnvoyFilter_Patch_REMOVE},
	networking.EnvoyFilter_FILTER_CHAIN: {networking.EnvoyFilter_Patch_MERGE,
		networking.EnvoyFilter_Patch_REMOVE},
	networking.EnvoyFilter_LISTENER_FILTER: {networking.EnvoyFilter_Patch_MERGE,
		networking.EnvoyFilter_Patch_REMOVE, networking.EnvoyFilter_Patch_REPLACE},
	networking.EnvoyFilter_NETWORK_FILTER: {networking.EnvoyFilter_Patch_MERGE,
		networking.EnvoyFilter_Patch_REMOVE, networking.EnvoyFilter_Patch_REPLACE},
	networking.EnvoyFilter_HTTP_FILTER: {networking.EnvoyFilter_Patch_MERGE,
		networking.EnvoyFilter_Patch_REMOVE, networking.EnvoyFilter_Patch_REPLACE},
	networking.EnvoyFilter_ROUTE_CONFIGURATION: {networking.EnvoyFilter_Patch_MERGE},
	networking.EnvoyFilter_VIRTUAL_HOST: {networking.EnvoyFilter_Patch_MERGE,
		networking.EnvoyFilter_Patch_REMOVE, networking.EnvoyFilter_Patch_REPLACE},
	networking.EnvoyFilter_HTTP_ROUTE: {networking.EnvoyFilter_Patch_MERGE,
		networking.EnvoyFilter_Patch_REMOVE},
	networking.EnvoyFilter_CLUSTER: {networking.EnvoyFilter_Patch_MERGE,
		networking.EnvoyFilter_Patch_REMOVE},
}

// patchEffect warns of operations that have no effect, as in Istio.
func (c *checker) patchEffect(field string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	to, operation := p.ApplyTo, p.Patch.Operation
	merges := operation == networking.EnvoyFilter_Patch_MERGE ||
		operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	adds := !merges && operation != networking.EnvoyFilter_Patch_REMOVE &&
		operation != networking.EnvoyFilter_Patch_REPLACE
	possible := adds && to != networking.EnvoyFilter_ROUTE_CONFIGURATION || merges &&
		to != networking.EnvoyFilter_EXTENSION_CONFIG ||
		slices.Contains(operations[to], operation)
	if !possible {
		c.warn(field, fmt.Sprintf("%s does nothing to %s", operation, to),
			"write an operation that can be done")
		return
	}
	named := true
	switch to {
	case networking.EnvoyFilter_LISTENER_FILTER:
		named = p.Match.GetListener().GetListenerFilter() != ""
	case networking.EnvoyFilter_NETWORK_FILTER:
		named = merges || p.Match.GetListener().GetFilterChain().GetFilter() != nil
	case networking.EnvoyFilter_HTTP_FILTER:
		named = merges || p.Match.GetListener().GetFilterChain().GetFilter().GetSubFilter() != nil
	}
	if !adds && !named {
		c.warn(field, fmt.Sprintf("%s of a %s does nothing unless match names the filter",
			operation, to), "name it in match")
	}
}
