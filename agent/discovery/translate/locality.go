package translate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
)

// localityOf returns the effective locality settings; nil if locality load balancing is off. The
// policy's settings have the highest precedence, the mesh's settings the lowest; the service's
// traffic distribution is between them. always reports whether the settings take effect even
// without outlier detection.
func (p policy) localityOf(m *mesh.Config,
	service *model.Service) (setting *networking.LocalityLoadBalancerSetting, always bool) {
	setting = p.loadBalancer.GetLocalityLbSetting()
	if setting == nil {
		if labels := service.PreferredLabels(); labels != nil {
			return &networking.LocalityLoadBalancerSetting{FailoverPriority: labels}, true
		}
		setting = m.LocalityLB
	}
	if on := setting.GetEnabled(); on != nil && !on.Value {
		return nil, false
	}
	if setting == nil {
		return &networking.LocalityLoadBalancerSetting{}, false
	}
	return setting, false
}

// prefer sets priorities and weights of endpoint groups for a proxy, as Istio does: by the shares
// in distribute, else by distance. Distance requires outlier detection, because otherwise no
// endpoint is considered failed.
func (d *draft) prefer(service *model.Service, groups []group, node model.Node) []group {
	setting, always := d.policy.localityOf(d.mesh, service)
	failover := d.policy.outlier != nil || always
	if setting == nil {
		return groups
	}
	distribute := len(setting.Distribute) > 0
	if distribute || failover && (len(setting.Failover) > 0 || len(setting.FailoverPriority) > 0) {
		d.common().LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{}}
	}
	switch {
	case distribute:
		return share(groups, node.Locality, setting.Distribute)
	case !failover:
		return groups
	case len(setting.FailoverPriority) > 0:
		groups = byLabels(groups, node, setting.FailoverPriority)
		if len(setting.Failover) > 0 {
			byRegion(groups, node.Locality, setting.Failover)
		}
	default:
		byRegion(groups, node.Locality, setting.Failover)
	}
	return withoutGaps(groups)
}

// share sets the weight of each locality by the first distribute rule that matches the proxy's
// locality; localities that the rule does not name get no traffic. Without a matching rule,
// endpoints retain their weights.
func share(groups []group, from model.Locality,
	rules []*networking.LocalityLoadBalancerSetting_Distribute) []group {
	at := slices.IndexFunc(rules, func(r *networking.LocalityLoadBalancerSetting_Distribute) bool {
		return within(from, r.From)
	})
	if at < 0 {
		return groups
	}
	var out []group
	assigned := make([]bool, len(groups))
	to := rules[at].To
	for _, target := range slices.Sorted(maps.Keys(to)) {
		var total uint64
		var own []int
		for i, g := range groups {
			if !assigned[i] && within(g.where, target) {
				assigned[i] = true
				own = append(own, i)
				total += uint64(g.weight)
			}
		}
		for _, i := range own {
			g := groups[i]
			// rounds up, so that no share becomes zero
			g.weight = uint32((uint64(g.weight)*uint64(to[target]) + total - 1) / total)
			out = append(out, g)
		}
	}
	return out
}

// within reports whether a rule matches a locality. A rule is region, region/zone or
// region/zone/subzone, where * matches all.
func within(where model.Locality, rule string) bool {
	named := model.ParseLocality(rule)
	fits := func(own, rule string, first bool) bool {
		return rule == "*" || rule == "" && !first ||
			own == rule
	}
	return fits(where.Region, named.Region, true) && fits(where.Zone, named.Zone, false) &&
		fits(where.Subzone, named.Subzone, false)
}

// byLabels sets priorities by labels. An element of the list is "label=value", or "label" for the
// proxy's own value. The more labels an endpoint matches without a gap, counted from the first one,
// the higher is its priority. If the first label is the network's, all endpoints in the proxy's
// network precede all others. If endpoints of a locality have different priorities, their group is
// split.
func byLabels(groups []group, node model.Node, labels []string) []group {
	if isNowhere(node) {
		return groups
	}
	rank := func(e *model.Endpoint) int {
		far := 0
		for i, text := range labels {
			label, value, hasValue := strings.Cut(text, "=")
			if !hasValue {
				value = node.Label(label)
			}
			if e.Label(label) == value {
				continue
			}
			if i == 0 && label == model.NetworkLabel {
				far = len(labels)
				continue
			}
			return far + len(labels) - i
		}
		return far
	}
	var out []group
	for _, g := range groups {
		split := map[int]int{}
		for _, e := range g.endpoints {
			priority := rank(&e)
			at, known := split[priority]
			if !known {
				at = len(out)
				split[priority] = at
				out = append(out, group{where: g.where, priority: priority})
			}
			out[at].endpoints = append(out[at].endpoints, e)
			out[at].weight = addWeight(out[at].weight, e.Weight)
		}
	}
	return out
}

// isNowhere reports whether a proxy has neither locality, labels nor network by which endpoints
// could be preferred.
func isNowhere(node model.Node) bool {
	return len(node.Labels) == 0 && node.Locality == (model.Locality{}) && node.Network == ""
}

// byRegion sets priorities by distance: the proxy's subzone, zone and region come first, then the
// failover region, then all others. Groups of different priorities retain their order.
func byRegion(groups []group, from model.Locality,
	failover []*networking.LocalityLoadBalancerSetting_Failover) {
	named := slices.IndexFunc(failover,
		func(f *networking.LocalityLoadBalancerSetting_Failover) bool {
			return f.From == from.Region
		})
	const ranks = 5
	for i := range groups {
		where, rank := groups[i].where, 0
		switch {
		case where == from:
		case where.Region == from.Region && where.Zone == from.Zone:
			rank = 1
		case where.Region == from.Region:
			rank = 2
		case named < 0 || where.Region == failover[named].To:
			rank = 3
		default:
			rank = 4
		}
		groups[i].priority = groups[i].priority*ranks + rank
	}
}

// withoutGaps renumbers priorities from 0, as Envoy requires.
func withoutGaps(groups []group) []group {
	var used []int
	for _, g := range groups {
		used = append(used, g.priority)
	}
	slices.Sort(used)
	used = slices.Compact(used)
	for i := range groups {
		groups[i].priority, _ = slices.BinarySearch(used, groups[i].priority)
	}
	return groups
}

// ClusterVariantKey returns a key for a proxy: proxies with equal keys get equal clusters of a
// service with a DestinationRule (nil: none).
func ClusterVariantKey(m *mesh.Config, service *model.Service, rule *model.MergedDestinationRule,
	node model.Node) string {
	key := fmt.Sprintf("%s captured=%t identity=%t", node.Type, node.IsIntercepted(), node.Identity)
	if node.RecordsMetrics {
		key += fmt.Sprintf(" metrics in cluster %q", node.Metadata[clusterKey])
	}
	near, labels := false, map[string]bool{}
	// without a DestinationRule only the mesh's settings apply
	policies := []*networking.TrafficPolicy{nil}
	if rule != nil {
		policies[0] = rule.Policy
		for i := range rule.Subsets {
			policies = append(policies, rule.Subsets[i].TrafficPolicy)
		}
	}
	look := func(l *networking.LoadBalancerSettings, o *networking.OutlierDetection) {
		setting, always := policy{loadBalancer: l}.localityOf(m, service)
		near = near || always || o != nil || len(setting.GetDistribute()) > 0
		for _, text := range setting.GetFailoverPriority() {
			labels[text] = true
		}
	}
	for _, p := range policies {
		look(p.GetLoadBalancer(), p.GetOutlierDetection())
		for _, own := range p.GetPortLevelSettings() {
			look(own.GetLoadBalancer(), own.GetOutlierDetection())
		}
	}
	if near {
		key += fmt.Sprintf("\n%q", node.Locality)
		if len(labels) > 0 && isNowhere(node) {
			key += "\nnowhere"
		}
		for _, label := range slices.Sorted(maps.Keys(labels)) {
			name, _, _ := strings.Cut(label, "=")
			key += fmt.Sprintf("\n%q", node.Label(name))
		}
	}
	return key
}
