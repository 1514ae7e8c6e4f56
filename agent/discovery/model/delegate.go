package model

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// Limits of merging one VirtualService with its delegates. Each match of a route is combined with
// each match of its delegate, which at the limit takes a fraction of a second.
const (
	mostMerged   = 10_000  // maximum number of matches after merging
	mostCompared = 200_000 // maximum number of compared pairs of matches
)

// delegateKey returns the key of the VirtualService that a route of root delegates to.
func delegateKey(root *object.Object, d *networking.Delegate) object.Key {
	key := object.Key{Kind: object.VirtualService, Namespace: d.Namespace, Name: d.Name}
	if key.Namespace == "" {
		key.Namespace = root.Namespace
	}
	return key
}

// delegatesOf returns the keys of the VirtualServices that root delegates to.
func delegatesOf(root *object.Object) []object.Key {
	var keys []object.Key
	for _, route := range root.Spec.(*networking.VirtualService).Http {
		if route.Delegate != nil {
			keys = append(keys, delegateKey(root, route.Delegate))
		}
	}
	return keys
}

func withoutDelegator(all map[object.Key]map[*object.Object]struct{},
	root *object.Object) map[object.Key]map[*object.Object]struct{} {
	for _, key := range delegatesOf(root) {
		if delete(all[key], root); len(all[key]) == 0 {
			delete(all, key)
		}
	}
	return all
}

// redelegate rebuilds the VirtualServices that delegate to changed ones.
func (w *Mesh) redelegate(changed []object.Key, hosts, bindings map[string]struct{}) {
	roots := map[*object.Object]struct{}{}
	for _, key := range changed {
		maps.Copy(roots, w.delegators[key])
	}
	for root := range roots {
		w.unroute(root, hosts, bindings)
		w.route(root, hosts, bindings)
	}
}

// addDelegate appends the routes of a route's delegate, each merged with the root's route. As in
// Istio, it leaves out routes whose matches contradict those of the root.
func (w *Mesh) addDelegate(r *MergedVirtualService, index int) {
	root := r.Spec.Http[index]
	warn := func(o *object.Object, field, message, fix string) {
		r.Problems = append(r.Problems, o.Warning(field, message, fix))
	}
	key := delegateKey(r.Object, root.Delegate)
	field := fmt.Sprintf("http[%d].delegate", index)
	o := w.byKey[key]
	if o == nil {
		warn(r.Object, field, fmt.Sprintf("there is no %s: the route has no effect", key),
			"add it or correct the name")
		return
	}
	spec := o.Spec.(*networking.VirtualService)
	switch {
	case len(spec.Hosts) > 0:
		warn(r.Object, field,
			fmt.Sprintf("%s at %s has hosts and is no delegate: the route has no effect", key,
				o.Position()), "remove its hosts")
		return
	case !visible(spec.ExportTo, w.mesh.VirtualServiceExportTo, o.Namespace, r.Object.Namespace):
		warn(r.Object, field,
			fmt.Sprintf("%s at %s is not exported to namespace %s: the route has no effect", key,
				o.Position(), r.Object.Namespace), "add the namespace to its exportTo")
		return
	}
	if !slices.Contains(r.Delegates, o) {
		r.Delegates = append(r.Delegates, o)
	}
	before, outer := len(r.HTTP), withGateways(root.Match, r.Object.Namespace)
	for i, route := range spec.Http {
		var matches []*networking.HTTPMatchRequest
		ok := true
		if r.compared += max(1, len(outer)) * max(1, len(route.Match)); r.compared <= mostCompared {
			matches, ok = mergeMatches(outer, route.Match, o.Namespace, mostMerged-r.merged)
			r.merged += max(1, len(matches))
		}
		if r.compared > mostCompared || r.merged > mostMerged {
			r.HTTP = r.HTTP[:before]
			r.Problems = append(r.Problems,
				r.Object.NewProblem(object.Finding{Field: field, Severity: condition.Error,
					Message: fmt.Sprintf(
						"with %s at %s the delegates come to more than %d matches, or more "+
							"than %d pairs to compare: the route has no effect",
						key, o.Position(), mostMerged, mostCompared),
					Fix: "write fewer matches in the VirtualService, whose number is multiplied " +
						"with that in its delegates"}))
			return
		}
		if !ok {
			warn(o, fmt.Sprintf("http[%d].match", i),
				fmt.Sprintf("matches nothing that http[%d] of %s at %s matches: the route has "+
					"no "+
					"effect there",
					index, r.Object.Key, r.Object.Position()),
				"narrow what the root matches, or remove the match")
			continue
		}
		merged := w.mergeRoutes(root, r.Object.Namespace, route, o.Namespace)
		merged.Match = matches
		r.HTTP = append(r.HTTP, HTTPRoute{HTTPRoute: merged, Object: o, Index: i})
	}
}

// mergeRoutes returns a delegate's route, with the settings of the root's route where the delegate
// has none. Destinations are resolved in the namespace of the object that names them.
func (w *Mesh) mergeRoutes(root *networking.HTTPRoute, rootNamespace string,
	delegate *networking.HTTPRoute, namespace string) *networking.HTTPRoute {
	own, its := w.resolved(delegate, namespace), w.resolved(root, rootNamespace)
	own.Name = joined(its.Name, own.Name)
	inherit(&own.Rewrite, its.Rewrite)
	inherit(&own.DirectResponse, its.DirectResponse)
	inherit(&own.Timeout, its.Timeout)
	inherit(&own.Retries, its.Retries)
	inherit(&own.Fault, its.Fault)
	inherit(&own.Mirror, its.Mirror)
	//nolint:staticcheck // deprecated, but valid
	inherit(&own.MirrorPercent, its.MirrorPercent)
	inherit(&own.MirrorPercentage, its.MirrorPercentage)
	inherit(&own.CorsPolicy, its.CorsPolicy)
	inherit(&own.Headers, its.Headers)
	if own.Mirrors == nil {
		own.Mirrors = its.Mirrors
	}
	return own
}

func inherit[T any](own **T, root *T) {
	if *own == nil {
		*own = root
	}
}

// joined returns the name of a delegate's route within its root route. Either name may be empty.
func joined(root, own string) string {
	if root == "" || own == "" {
		return root + own
	}
	return root + "-" + own
}

// resolved returns a copy of a route whose destinations have full names.
func (w *Mesh) resolved(route *networking.HTTPRoute, namespace string) *networking.HTTPRoute {
	own := proto.Clone(route).(*networking.HTTPRoute)
	full := func(d *networking.Destination) {
		if d != nil {
			d.Host = FullName(d.Host, namespace, w.domain)
		}
	}
	for _, to := range own.Route {
		full(to.Destination)
	}
	full(own.Mirror)
	for _, m := range own.Mirrors {
		full(m.Destination)
	}
	return own
}
