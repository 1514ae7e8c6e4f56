package model

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// workloads indexes WorkloadEntries and the ServiceEntries that select them by label, so that a
// changed WorkloadEntry finds its ServiceEntries, and the reverse, without a scan.
type workloads struct {
	entries map[pair][]*object.Object // WorkloadEntries by each of their labels, sorted by name
	// ServiceEntries by the first label of their selector, oldest first
	selectors map[pair][]*object.Object
	unhealthy map[*object.Object]struct{} // WorkloadEntries that may not receive requests
}

// pair is a label in a namespace. An empty key matches all objects in the namespace.
type pair struct{ namespace, key, value string }

func newWorkloads() workloads {
	return workloads{entries: map[pair][]*object.Object{}, selectors: map[pair][]*object.Object{},
		unhealthy: map[*object.Object]struct{}{}}
}

// WorkloadLabels returns the labels of a WorkloadEntry. Labels in its metadata override those in
// its spec.
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

// Istio's annotation of WorkloadEntries that are health-checked, and the status condition with the
// result.
const (
	HealthAnnotation = "proxy.istio.io/health-checks-enabled"
	HealthCondition  = "Healthy"
)

// IsHealthy reports whether a WorkloadEntry may receive requests: it is not health-checked, or its
// condition Healthy is True.
func IsHealthy(o *object.Object) bool {
	enabled, err := strconv.ParseBool(o.Annotations[HealthAnnotation])
	return err != nil || !enabled || o.Conditions[HealthCondition] == "True"
}

func byName(a, b *object.Object) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), object.CompareAge(a, b))
}

// change updates the index for a change of a WorkloadEntry, and returns the ServiceEntries that
// selected it before the change or select it now.
func (w workloads) change(c object.Change) []*object.Object {
	var choosing []*object.Object
	delete(w.unhealthy, c.Old)
	if c.New != nil && !IsHealthy(c.New) {
		w.unhealthy[c.New] = struct{}{}
	}
	for i, o := range [...]*object.Object{c.Old, c.New} {
		if o == nil {
			continue
		}
		labels := WorkloadLabels(o)
		for _, p := range pairs(o.Namespace, labels) {
			if i == 1 {
				insert(w.entries, p, o, byName)
			} else {
				remove(w.entries, p, o)
			}
			for _, entry := range w.selectors[p] {
				if SelectorMatches(selectorOf(entry), labels) {
					choosing = append(choosing, entry)
				}
			}
		}
	}
	return choosing
}

// pairs returns the keys under which a WorkloadEntry is indexed.
func pairs(namespace string, labels map[string]string) []pair {
	all := make([]pair, 0, 1+len(labels))
	all = append(all, pair{namespace: namespace})
	for key, value := range labels {
		all = append(all, pair{namespace, key, value})
	}
	return all
}

// choose updates the index for a change of a ServiceEntry's selector.
func (w workloads) choose(c object.Change) {
	if c.Old != nil && hasSelector(c.Old) {
		remove(w.selectors, firstPair(c.Old), c.Old)
	}
	if c.New != nil && hasSelector(c.New) {
		insert(w.selectors, firstPair(c.New), c.New, object.CompareAge)
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

// listed is an endpoint of a ServiceEntry, with the name of its workload; "" if it has none.
type listed struct {
	*networking.WorkloadEntry
	workload string
}

// chosen returns the WorkloadEntries that a ServiceEntry selects, sorted by name. Their labels
// include those of their metadata.
func (w workloads) chosen(o *object.Object) []listed {
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
	var found []listed
	for _, candidate := range candidates {
		labels := WorkloadLabels(candidate)
		if !IsHealthy(candidate) || !SelectorMatches(selector, labels) {
			continue
		}
		in := candidate.Spec.(*networking.WorkloadEntry)
		found = append(found, listed{&networking.WorkloadEntry{Address: in.Address,
			Ports: in.Ports, Labels: labels, Network: in.Network, Locality: in.Locality,
			Weight: in.Weight, ServiceAccount: in.ServiceAccount}, workloadName(candidate, labels)})
	}
	return found
}

// WorkloadNameLabel is the label with the name of a workload. Without it, the object's name is the
// workload's.
const WorkloadNameLabel = "service.istio.io/workload-name"

// groupAnnotation has the name of the WorkloadGroup to which a WorkloadEntry was registered.
const groupAnnotation = "istio.io/autoRegistrationGroup"

// workloadName returns the name of a WorkloadEntry's workload, as in Istio.
func workloadName(o *object.Object, labels map[string]string) string {
	return cmp.Or(o.Annotations[groupAnnotation], labels[WorkloadNameLabel], o.Name)
}
