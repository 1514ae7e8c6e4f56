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

// localityOf is what counts of localities, which may be that they count as usual; nil if they do
// not.
func (p policy) localityOf(m *mesh.Config) *networking.LocalityLoadBalancerSetting {
	setting := p.loadBalancer.GetLocalityLbSetting()
	if setting == nil {
		setting = m.Locality
	}
	if on := setting.GetEnabled(); on != nil && !on.Value {
		return nil
	}
	if setting == nil {
		return &networking.LocalityLoadBalancerSetting{}
	}
	return setting
}

// prefer orders and weighs groups of endpoints as a proxy prefers them, as Istio does: by the
// shares that distribute gives, else near ones before far ones. The latter needs outlier detection,
// without which no endpoint counts as failed.
func (d *draft) prefer(groups []group, node model.Node) []group {
	setting := d.policy.localityOf(d.mesh)
	failover := d.policy.outlier != nil
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

// share gives each place the share that the first rule for the proxy's place gives it; other places
// get nothing. Where no rule is for the proxy, its endpoints share by their own weights.
func share(groups []group, from model.Locality,
	rules []*networking.LocalityLoadBalancerSetting_Distribute) []group {
	at := slices.IndexFunc(rules, func(r *networking.LocalityLoadBalancerSetting_Distribute) bool {
		return within(from, r.From)
	})
	if at < 0 {
		return groups
	}
	var out []group
	taken := make([]bool, len(groups))
	to := rules[at].To
	for _, place := range slices.Sorted(maps.Keys(to)) {
		var total uint64
		var own []int
		for i, g := range groups {
			if !taken[i] && within(g.where, place) {
				taken[i] = true
				own = append(own, i)
				total += uint64(g.weight)
			}
		}
		for _, i := range own {
			g := groups[i]
			// rounded up: nobody's share is nothing
			g.weight = uint32((uint64(g.weight)*uint64(to[place]) + total - 1) / total)
			out = append(out, g)
		}
	}
	return out
}

// within tells whether a place is one that a rule names: region, region/zone or
// region/zone/subzone, with * for all.
func within(where model.Locality, rule string) bool {
	named := model.ParseLocality(rule)
	fits := func(own, rule string, first bool) bool {
		return rule == "*" || rule == "" && !first ||
			own == rule
	}
	return fits(where.Region, named.Region, true) && fits(where.Zone, named.Zone, false) &&
		fits(where.Subzone, named.Subzone, false)
}

// byLabels prefers endpoints that have the proxy's value, or a given one ("label=value"), of the
// first label, of these those that have it of the second too, and so on. The network as first label
// orders the whole twice: the own network's before all others'. Places are split where their
// endpoints differ.
func byLabels(groups []group, node model.Node, labels []string) []group {
	if isNowhere(node) {
		return groups
	}
	rank := func(e *model.Endpoint) int {
		far := 0
		for i, text := range labels {
			label, value, given := strings.Cut(text, "=")
			if !given {
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

// isNowhere tells whether a proxy says nothing of itself that endpoints could have in common with
// it.
func isNowhere(node model.Node) bool {
	return len(node.Labels) == 0 && node.Locality == (model.Locality{}) && node.Network == ""
}

// byRegion prefers the proxy's own subzone, zone, region, then the region that is named for its
// own, then all others. What is preferred already stays so.
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

// withoutGaps numbers priorities from 0 on, as Envoy wants them.
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

// ReaderKey is equal for proxies that get the same clusters of a service under a rule (nil: none).
func ReaderKey(m *mesh.Config, rule *model.Rule, node model.Node) string {
	key := fmt.Sprintf("%s captured=%t", node.Type, node.Captured())
	near, labels := false, map[string]bool{}
	policies := []*networking.TrafficPolicy{nil} // without a rule the mesh's settings count alone
	if rule != nil {
		policies[0] = rule.Policy
		for i := range rule.Subsets {
			policies = append(policies, rule.Subsets[i].TrafficPolicy)
		}
	}
	look := func(l *networking.LoadBalancerSettings, o *networking.OutlierDetection) {
		setting := policy{loadBalancer: l}.localityOf(m)
		near = near || o != nil || len(setting.GetDistribute()) > 0
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
