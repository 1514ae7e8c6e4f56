package mcp

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// objects holds an input for each object of the server, by type URL and name (NAMESPACE/NAME).
type objects struct {
	options Options
	known   map[string]map[string]store.SourceInput
	// types with an empty list, whose objects are retained
	empty map[string]bool
}

// lists collects the first list of each type on a new stream, and then applies later responses.
type lists struct {
	*objects
	missing map[string]bool // types whose list has not arrived yet
	// lists that have arrived; they are applied together once all have arrived
	pending map[string]map[string]store.SourceInput
}

func newObjects(o Options) *objects {
	return &objects{options: o, known: map[string]map[string]store.SourceInput{},
		empty: map[string]bool{}}
}

// types returns the type URLs to request.
func (o *objects) types() []string {
	if o.options.ServicesOnly {
		return []string{typeURL(object.NetworkingGroup, object.ServiceEntry)}
	}
	var found []string
	for _, group := range object.Groups() {
		for _, kind := range object.Kinds(group) {
			if object.NewSpec(object.Kind(kind)) != nil {
				found = append(found, typeURL(group, object.Kind(kind)))
			}
		}
	}
	return found
}

// typeURL returns the type URL of a kind: GROUP/VERSION/KIND. VERSION is the API version in which
// istiod stores objects of the kind.
func typeURL(group string, kind object.Kind) string {
	switch {
	case kind == object.EnvoyFilter:
		return group + "/v1alpha3/" + string(kind)
	case group == object.ExtensionsGroup:
		return group + "/v1alpha1/" + string(kind)
	}
	return group + "/v1/" + string(kind)
}

// begin returns empty lists for a new stream.
func (o *objects) begin() *lists {
	l := &lists{objects: o, missing: map[string]bool{},
		pending: map[string]map[string]store.SourceInput{}}
	for _, of := range o.types() {
		l.missing[of] = true
	}
	return l
}

func (l *lists) complete() bool { return len(l.missing) == 0 }

func (l *lists) outstanding() string {
	return strings.Join(slices.Sorted(maps.Keys(l.missing)), ", ")
}

// take processes a response. It returns a batch with the complete state when the last missing list
// has arrived, and after that a batch with the changes in each response.
func (l *lists) take(r response) (batch discovery.SourceUpdate, changed bool) {
	if !slices.Contains(l.types(), r.typeURL) {
		return batch, false
	}
	if !l.complete() {
		l.pending[r.typeURL] = l.apply(l.pending[r.typeURL], r)
		delete(l.missing, r.typeURL)
		if l.complete() {
			return l.reconcile(), true
		}
		return batch, false
	}
	before := l.known[r.typeURL]
	if l.empty[r.typeURL] && len(r.set) == 0 {
		return batch, false
	}
	base := before
	// The response adds objects to an empty list, so retained objects are removed.
	if l.empty[r.typeURL] {
		delete(l.empty, r.typeURL)
		base = nil
	}
	l.known[r.typeURL] = l.apply(base, r)
	batch = discovery.SourceUpdate{Source: l.options.Name, Inputs: difference(before,
		l.known[r.typeURL])}
	return batch, len(batch.Inputs) > 0
}

// apply returns the inputs of a type after a response. before contains its inputs before the
// response.
func (l *lists) apply(before map[string]store.SourceInput,
	r response) map[string]store.SourceInput {
	after := maps.Clone(before)
	if after == nil || r.full {
		after = map[string]store.SourceInput{}
	}
	for _, name := range r.removed {
		delete(after, name)
	}
	for _, one := range r.set {
		if name, input, ok := l.input(r.typeURL, one); ok {
			after[name] = input
		}
	}
	return after
}

// reconcile replaces the known objects by the lists that have arrived. It retains the known objects
// of a type whose list is empty.
func (l *lists) reconcile() discovery.SourceUpdate {
	for of, list := range l.pending {
		if l.empty[of] = len(list) == 0 && len(l.known[of]) > 0; !l.empty[of] {
			delete(l.empty, of)
			l.known[of] = list
		}
	}
	l.pending = nil
	batch := discovery.SourceUpdate{Source: l.options.Name, Complete: true}
	for _, of := range l.types() {
		batch.Inputs = append(batch.Inputs, difference(nil, l.known[of])...)
	}
	return batch
}

// acceptEmpty removes the retained objects of types whose list is empty.
func (l *lists) acceptEmpty() (batch discovery.SourceUpdate, changed bool) {
	batch.Source = l.options.Name
	for of := range l.empty {
		batch.Inputs = append(batch.Inputs, difference(l.known[of], nil)...)
		delete(l.known, of)
		delete(l.empty, of)
	}
	return batch, len(batch.Inputs) > 0
}

// difference returns the inputs in after that are new or changed since before. For each input that
// is missing in after, it returns an empty input, which removes the objects.
func difference(before, after map[string]store.SourceInput) []store.SourceInput {
	var found []store.SourceInput
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if now := after[name]; !same(before[name], now) {
			found = append(found, now)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[name]; !ok {
			found = append(found, store.SourceInput{Path: before[name].Path})
		}
	}
	return found
}

func same(a, b store.SourceInput) bool {
	return a.Path == b.Path && bytes.Equal(a.Text, b.Text) &&
		slices.EqualFunc(a.Objects, b.Objects, object.Equal)
}

func (o *objects) count() int {
	count := 0
	for _, list := range o.known {
		count += len(list)
	}
	return count
}

// problem returns the problem of the source for the operator; "": none.
func (o *objects) problem() string {
	var found []string
	for _, of := range slices.Sorted(maps.Keys(o.empty)) {
		found = append(found, fmt.Sprintf("the list of %s is empty: the %d objects of before stay "+
			"until there is one again; a reload removes them", of, len(o.known[of])))
	}
	return strings.Join(found, "; ")
}

// input returns the name and the input for a resource. ok is false if the source omits the
// resource: a registry omits configuration, other sources omit the services of registries.
func (o *objects) input(typeURL string, resource *anypb.Any) (name string, _ store.SourceInput,
	ok bool) {
	d, err := decode(typeURL, resource)
	if err != nil {
		return "", store.SourceInput{}, false // without a name, no problem can be reported
	}
	entry := d.kind == object.ServiceEntry
	if (entry && strings.Contains(d.name, ":")) != o.options.ServicesOnly ||
		entry && strings.HasPrefix(d.name, synthetic) {
		return "", store.SourceInput{}, false
	}
	path := fmt.Sprintf("%s:%s/%s/%s", o.options.Name, d.kind, d.namespace, d.name)
	if o.options.ServicesOnly {
		if d.broken != nil {
			return "", store.SourceInput{}, false
		}
		return d.qualified(), store.SourceInput{Path: path,
			Objects: []*object.Object{d.object(path)}}, true
	}
	return d.qualified(), store.SourceInput{Path: path, Text: d.text()}, true
}
