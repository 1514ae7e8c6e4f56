package model

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// workloads are the WorkloadEntries and the ServiceEntries that choose among them, so that a change
// of either finds the other without looking through all.
type workloads struct {
	entries map[pair][]*object.Object // WorkloadEntries by each of their labels, by name
	// ServiceEntries by the first label that they ask for, by age
	selectors map[pair][]*object.Object
}

// pair is a label in a namespace; without a key it stands for all in the namespace.
type pair struct{ namespace, key, value string }

func newWorkloads() workloads {
	return workloads{entries: map[pair][]*object.Object{}, selectors: map[pair][]*object.Object{}}
}

// WorkloadLabels are those of a WorkloadEntry: of its spec and, before these, of its metadata.
func WorkloadLabels(o *object.Object) map[string]string {
	spec := o.Spec.(*networking.WorkloadEntry).Labels
	if len(o.Labels) == 0 {
		return spec
	}
	all := make(map[string]string, len(spec)+len(o.Labels))
	maps.Copy(all, spec)
	maps.Copy(all, o.Labels)
	return all
}

// The annotation of a WorkloadEntry whose health is asked, and the condition that tells the answer,
// as in Istio.
const (
	healthAnnotation = "proxy.istio.io/health-checks-enabled"
	healthCondition  = "Healthy"
)

// Healthy tells whether a WorkloadEntry gets requests: unless its health is asked and the answer is
// not known to be good.
func Healthy(o *object.Object) bool {
	asked, err := strconv.ParseBool(o.Annotations[healthAnnotation])
	return err != nil || !asked || o.Conditions[healthCondition] == "True"
}

func byName(a, b *object.Object) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), object.Age(a, b))
}

// change takes a WorkloadEntry in and returns the ServiceEntries that choose it, before or after.
func (w workloads) change(c Change) []*object.Object {
	var choosing []*object.Object
	for _, side := range [...]struct {
		o  *object.Object
		do func(map[pair][]*object.Object, pair, *object.Object, func(a, b *object.Object) int)
	}{{c.Old, remove[pair, *object.Object]}, {c.New, insert[pair, *object.Object]}} {
		if side.o == nil {
			continue
		}
		labels := WorkloadLabels(side.o)
		for _, p := range pairs(side.o.Namespace, labels) {
			side.do(w.entries, p, side.o, byName)
			for _, entry := range w.selectors[p] {
				if Selects(selectorOf(entry), labels) {
					choosing = append(choosing, entry)
				}
			}
		}
	}
	return choosing
}

// pairs are where a WorkloadEntry is found.
func pairs(namespace string, labels map[string]string) []pair {
	all := make([]pair, 0, 1+len(labels))
	all = append(all, pair{namespace: namespace})
	for key, value := range labels {
		all = append(all, pair{namespace, key, value})
	}
	return all
}

// choose notes what a ServiceEntry asks for, before and after; nil asks for nothing.
func (w workloads) choose(c Change) {
	if c.Old != nil && hasSelector(c.Old) {
		remove(w.selectors, firstPair(c.Old), c.Old, object.Age)
	}
	if c.New != nil && hasSelector(c.New) {
		insert(w.selectors, firstPair(c.New), c.New, object.Age)
	}
}

func hasSelector(o *object.Object) bool {
	return o.Spec.(*networking.ServiceEntry).WorkloadSelector != nil
}

func selectorOf(o *object.Object) map[string]string {
	return o.Spec.(*networking.ServiceEntry).WorkloadSelector.GetLabels()
}

func firstPair(o *object.Object) pair {
	selector := selectorOf(o)
	if len(selector) == 0 {
		return pair{namespace: o.Namespace}
	}
	key := slices.Min(slices.Collect(maps.Keys(selector)))
	return pair{o.Namespace, key, selector[key]}
}

// chosen are the WorkloadEntries that a ServiceEntry chooses, by name, with all their labels.
func (w workloads) chosen(o *object.Object) []*networking.WorkloadEntry {
	if !hasSelector(o) {
		return nil
	}
	selector := selectorOf(o)
	candidates := w.entries[pair{namespace: o.Namespace}]
	for key, value := range selector {
		if fewer := w.entries[pair{o.Namespace, key, value}]; len(fewer) < len(candidates) {
			candidates = fewer
		}
	}
	var found []*networking.WorkloadEntry
	for _, candidate := range candidates {
		labels := WorkloadLabels(candidate)
		if !Healthy(candidate) || !Selects(selector, labels) {
			continue
		}
		in := candidate.Spec.(*networking.WorkloadEntry)
		found = append(found, &networking.WorkloadEntry{Address: in.Address, Ports: in.Ports,
			Labels: labels, Network: in.Network,
			Locality: in.Locality, Weight: in.Weight, ServiceAccount: in.ServiceAccount})
	}
	return found
}
