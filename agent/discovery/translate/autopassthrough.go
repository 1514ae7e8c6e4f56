package translate

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// AutoPassthroughClusters returns the clusters of a service for gateways with AUTO_PASSTHROUGH: one
// for each port and subset, named like the SNI that proxies of the mesh use for it. They contain
// only endpoints that accept mutual TLS, because the gateway does not terminate TLS and cannot
// check it.
func AutoPassthroughClusters(m *mesh.Config, service *model.Service,
	rule *model.MergedDestinationRule,
	node model.Node) []*resource.Resource {
	out := Clusters{mesh: m, node: node}
	eachPassed(service, rule, func(port *model.Port, subset *model.Subset) {
		out.addPassed(service, port, rule, subset)
	})
	return out.Resources
}

// AutoPassthroughRoutes returns the routes, by SNI, of connections to a service through a gateway
// with AUTO_PASSTHROUGH; none for an external service or a wildcard host.
func (r *RouteTranslator) AutoPassthroughRoutes(service *model.Service) []ConnectionRoute {
	var out []ConnectionRoute
	eachPassed(service, r.Mesh.DestinationRule(service, r.Node), func(port *model.Port,
		subset *model.Subset) {
		name := ""
		if subset != nil {
			name = subset.Name
		}
		cluster := meshServerName(port.Number, name, service.Host)
		proxy := r.proxy(service, port.Number, name, cluster)
		proxy.TunnelingConfig = nil
		out = append(out, ConnectionRoute{Object: port.Object, Field: "hosts", proxy: proxy,
			ServerNames: []string{cluster}})
	})
	return out
}

// eachPassed calls a function for each port and subset (nil: none) of a service that a gateway with
// AUTO_PASSTHROUGH serves.
func eachPassed(service *model.Service, rule *model.MergedDestinationRule,
	do func(port *model.Port, subset *model.Subset)) {
	if model.IsWildcard(service.Host) {
		return
	}
	for i := range service.Ports {
		port := &service.Ports[i]
		if !port.IsMeshInternal() {
			continue
		}
		do(port, nil)
		if rule != nil {
			for j := range rule.Subsets {
				do(port, &rule.Subsets[j])
			}
		}
	}
}

func (out *Clusters) addPassed(service *model.Service, port *model.Port,
	rule *model.MergedDestinationRule,
	subset *model.Subset) {
	name, origins := "", []resource.Origin{port.Object.Origin()}
	var labels map[string]string
	if subset != nil {
		name, labels = subset.Name, subset.Labels
	}
	if rule != nil {
		for _, o := range rule.Objects {
			origins = append(origins, o.Origin())
		}
	}
	c := &draft{Cluster: &clusterv3.Cluster{Name: meshServerName(port.Number, name, service.Host)},
		mesh: out.mesh, protocol: model.TCP, policy: policyFor(rule, port.Number, name)}
	c.applyPool()
	c.applyOutlier()
	c.applyBalancer()
	endpoints := slices.DeleteFunc(service.Endpoints(port, labels), func(e model.Endpoint) bool {
		return !e.MutualTLS || e.PlainText
	})
	out.sendTo(c, service, port, endpoints, origins)
}
