package model

import (
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// MergedDestinationRule is the result of merging the DestinationRules of one namespace for one host
// or pattern. The result depends on which of them are visible to the proxy and select it.
type MergedDestinationRule struct {
	Host      string
	Namespace string
	// merged objects: those with a workloadSelector first, then the oldest first
	Objects      []*object.Object
	Policy       *networking.TrafficPolicy
	PolicyObject *object.Object // the first object that has a traffic policy
	Subsets      []Subset

	// subsets without effect, because an earlier object has a subset of the same name
	ShadowedSubsets []Subset
	// objects whose traffic policy is ignored because PolicyObject has one
	ShadowedPolicies []*object.Object
	// objects that are ignored because an older object with another selector selects the proxy
	ShadowedSelectingRules []*object.Object
}

// Subset is a named subset of a service's endpoints, with the object that defines it.
type Subset struct {
	*networking.Subset
	Object *object.Object
	Index  int // index in the field subsets of Object
}

// Subset returns the subset with a name, or nil. r may be nil.
func (r *MergedDestinationRule) Subset(name string) *Subset {
	if r == nil {
		return nil
	}
	for i := range r.Subsets {
		if r.Subsets[i].Name == name {
			return &r.Subsets[i]
		}
	}
	return nil
}

func (r *MergedDestinationRule) add(o *object.Object) {
	r.Objects = append(r.Objects, o)
	spec := ruleSpec(o)
	switch {
	case spec.TrafficPolicy == nil:
	case r.Policy == nil:
		r.Policy, r.PolicyObject = spec.TrafficPolicy, o
	default:
		r.ShadowedPolicies = append(r.ShadowedPolicies, o)
	}
	for i, subset := range spec.Subsets {
		s := Subset{Subset: subset, Object: o, Index: i}
		if r.Subset(subset.Name) != nil {
			r.ShadowedSubsets = append(r.ShadowedSubsets, s)
		} else {
			r.Subsets = append(r.Subsets, s)
		}
	}
}

func ruleSpec(o *object.Object) *networking.DestinationRule {
	return o.Spec.(*networking.DestinationRule)
}

// ruleSet holds all DestinationRules of one namespace for one host. Which of them apply depends on
// the proxy; each combination is merged once, and its MergedDestinationRule is shared.
type ruleSet struct {
	host, namespace string
	objects         []*object.Object // DestinationRules of the set, the oldest first
	// merged DestinationRules, by the indices of the objects that apply
	merged map[string]*MergedDestinationRule
}

func newRules(host string, objects []*object.Object) []*ruleSet {
	var sets []*ruleSet
	for _, o := range objects {
		at := slices.IndexFunc(sets, func(s *ruleSet) bool { return s.namespace == o.Namespace })
		if at < 0 {
			at = len(sets)
			sets = append(sets, &ruleSet{host: host, namespace: o.Namespace,
				merged: map[string]*MergedDestinationRule{}})
		}
		sets[at].objects = append(sets[at].objects, o)
	}
	return sets
}

// rule merges the DestinationRules that apply to a proxy; nil if none does. Objects whose
// workloadSelector matches the proxy come first; if their selectors differ, only objects with the
// selector of the oldest one apply. Objects without a selector add their subsets, and their policy
// if no earlier object has one. If private is set, only DestinationRules that are not exported to
// other namespaces apply.
func (s *ruleSet) rule(exportTo []string, reader Node, private bool) *MergedDestinationRule {
	var chosen, others, everyone []*object.Object
	for _, o := range s.objects {
		selector := ruleSpec(o).WorkloadSelector
		switch {
		case private && !isPrivate(ruleSpec(o).ExportTo, exportTo, s.namespace):
		case selector == nil:
			if visible(ruleSpec(o).ExportTo, exportTo, s.namespace, reader.Namespace) {
				everyone = append(everyone, o)
			}
		case reader.Namespace != s.namespace || !SelectorMatches(selector.MatchLabels, reader.Labels):
		case len(chosen) > 0 && !sameSelector(chosen[0], o):
			others = append(others, o)
		default:
			chosen = append(chosen, o)
		}
	}
	all := slices.Concat(chosen, everyone)
	if len(all) == 0 {
		return nil
	}
	key := ""
	for _, o := range slices.Concat(all, others) {
		key += fmt.Sprintf("%d ", slices.Index(s.objects, o))
	}
	r := s.merged[key]
	if r == nil {
		r = &MergedDestinationRule{Host: s.host, Namespace: s.namespace,
			ShadowedSelectingRules: others}
		for _, o := range all {
			r.add(o)
		}
		s.merged[key] = r
	}
	return r
}

func sameSelector(a, b *object.Object) bool {
	x, y := ruleSpec(a).WorkloadSelector.MatchLabels, ruleSpec(b).WorkloadSelector.MatchLabels
	return len(x) == len(y) && SelectorMatches(x, y)
}

// DestinationRule returns the merged DestinationRules that apply to a service for a proxy, or nil.
// Rules in the proxy's namespace have precedence over rules in the service's namespace, and these
// over rules in the root namespace. Within a namespace, the rule with the most specific host has
// precedence. For a proxy in the root namespace, rules of that namespace that are exported to other
// namespaces have the lowest precedence.
func (w *Mesh) DestinationRule(service *Service, reader Node) *MergedDestinationRule {
	if r := w.ruleOf(service.Host, reader.Namespace, reader,
		reader.Namespace == w.mesh.RootNamespace); r != nil {
		return r
	}
	for _, namespace := range [...]string{service.Namespace, w.mesh.RootNamespace} {
		if r := w.ruleOf(service.Host, namespace, reader, false); r != nil {
			return r
		}
	}
	return nil
}

func (w *Mesh) ruleOf(host, namespace string, reader Node, private bool) *MergedDestinationRule {
	of := func(host string) *MergedDestinationRule {
		for _, s := range w.rules[host] {
			if s.namespace == namespace {
				return s.rule(w.mesh.DestinationRuleExportTo, reader, private)
			}
		}
		return nil
	}
	if r := of(host); r != nil {
		return r
	}
	for _, pattern := range w.rulePatterns {
		if pattern != host && HostCovers(pattern, host) {
			if r := of(pattern); r != nil {
				return r
			}
		}
	}
	return nil
}
