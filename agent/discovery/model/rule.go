package model

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// Rule is what all DestinationRules of one namespace for one host (or pattern) say together.
type Rule struct {
	Host      string
	Namespace string
	Objects   []*object.Object // the oldest first
	Policy    *networking.TrafficPolicy
	PolicyOf  *object.Object // the oldest that has one
	Subsets   []Subset
	Shadowed  []Subset // of a name that an older object has
}

// Subset is a named part of a service's endpoints.
type Subset struct {
	*networking.Subset
	Object *object.Object
	Index  int // in its object's subsets
}

// Subset returns the subset with a name, nil if there is none. A nil rule has none.
func (r *Rule) Subset(name string) *Subset {
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

func newRules(host string, objects []*object.Object) []*Rule {
	var rules []*Rule
	for _, o := range objects {
		spec := o.Spec.(*networking.DestinationRule)
		at := slices.IndexFunc(rules, func(r *Rule) bool { return r.Namespace == o.Namespace })
		if at < 0 {
			at = len(rules)
			rules = append(rules, &Rule{Host: host, Namespace: o.Namespace})
		}
		r := rules[at]
		r.Objects = append(r.Objects, o)
		if r.Policy == nil && spec.TrafficPolicy != nil {
			r.Policy, r.PolicyOf = spec.TrafficPolicy, o
		}
		for i, subset := range spec.Subsets {
			s := Subset{Subset: subset, Object: o, Index: i}
			if r.Subset(subset.Name) != nil {
				r.Shadowed = append(r.Shadowed, s)
			} else {
				r.Subsets = append(r.Subsets, s)
			}
		}
	}
	return rules
}

// Rule returns what counts for a service in the eyes of a proxy: the rule of the proxy's namespace, else of the
// service's, else of the root namespace; in each the one that names the host most exactly. nil if there is none.
func (w *World) Rule(service *Service, namespace string) *Rule {
	for i, place := range [...]string{namespace, service.Namespace, w.mesh.RootNamespace} {
		if i > 0 && place == namespace {
			continue
		}
		if r := w.ruleOf(service.Host, place, namespace); r != nil {
			return r
		}
	}
	return nil
}

func (w *World) ruleOf(host, place, reader string) *Rule {
	for _, r := range w.rules[host] {
		if r.Namespace == place && visible(r.Objects[0].Spec.(*networking.DestinationRule).ExportTo, w.mesh.RuleExportTo, place, reader) {
			return r
		}
	}
	for _, pattern := range w.rulePatterns {
		if pattern == host || !Covers(pattern, host) {
			continue
		}
		for _, r := range w.rules[pattern] {
			if r.Namespace == place && visible(r.Objects[0].Spec.(*networking.DestinationRule).ExportTo, w.mesh.RuleExportTo, place, reader) {
				return r
			}
		}
	}
	return nil
}
