package patch

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// Set holds all patches for one kind of proxy in their order. It is immutable.
type Set struct {
	node    model.Node
	patches []*patch // patches in order of application

	// patches that match only certain proxy versions, if the node reports no version
	unversioned []*patch
}

// NewSet returns the set of patches for a node. The filters are in order of application.
func NewSet(filters []*EnvoyFilter, node model.Node) *Set {
	s := &Set{node: node}
	for _, f := range filters {
		for _, p := range f.patches {
			switch {
			case p.meets(node):
				s.patches = append(s.patches, p)
			case node.IstioVersion == "" && p.match.GetProxy().GetProxyVersion() != "":
				s.unversioned = append(s.unversioned, p)
			}
		}
	}
	return s
}

// Empty reports whether the set has no patches.
func (s *Set) Empty() bool { return len(s.patches) == 0 }

// Objects returns the EnvoyFilters with patches in the set, in order of application.
func (s *Set) Objects() (all []*object.Object) {
	for _, p := range s.patches {
		if len(all) == 0 || all[len(all)-1] != p.object {
			all = append(all, p.object)
		}
	}
	return all
}

// Equal reports whether two sets of patches have the same effect and the same problems.
func (s *Set) Equal(t *Set) bool {
	same := func(p, q *patch) bool { return p.entry() == q.entry() }
	return slices.EqualFunc(s.patches, t.patches, same) && slices.EqualFunc(s.unversioned,
		t.unversioned, same)
}

// Result is the outcome of patching a resource.
type Result struct {
	// patched resource: the same one if no patch matches it, nil if a patch removes it
	Resource    *resource.Resource
	Problems    []object.Problem
	UsedPatches []Patch // patches that had an effect on the resource
}

// Apply patches a resource. If an EnvoyFilter makes the resource invalid, Apply leaves out and
// reports that EnvoyFilter.
func (s *Set) Apply(r *resource.Resource) Result {
	patches := s.candidates(r)
	if len(patches) == 0 {
		return Result{Resource: r}
	}
	out, err := s.apply(r, patches)
	if err == nil {
		return out
	}
	var good []*patch
	var problems []object.Problem
	for len(patches) > 0 {
		n := slices.IndexFunc(patches, func(p *patch) bool { return p.object != patches[0].object })
		if n < 0 {
			n = len(patches)
		}
		tried := append(slices.Clip(good), patches[:n]...)
		if _, err := s.apply(r, tried); err != nil {
			problems = append(problems,
				patches[0].object.NewProblem(object.Finding{Field: "configPatches",
					Severity: condition.Error,
					Message: fmt.Sprintf("Envoy would refuse the patched %s %s: %v",
						kind(r.Type), r.Name, err),
					Fix: "correct the value"}))
		} else {
			good = tried
		}
		patches = patches[n:]
	}
	if out, err = s.apply(r, good); err != nil {
		// never reached: Envoy's API has accepted the resource with these EnvoyFilters in the loop
		out = Result{Resource: r}
	}
	out.Problems = append(out.Problems, problems...)
	return out
}

// kind returns the short name of a resource type.
func kind(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '.')+1:] }

// kinds lists the kinds of patches that apply to each type of resource.
var kinds = map[string][]applyTo{
	resource.ListenerType: {networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_FILTER_CHAIN,
		networking.EnvoyFilter_LISTENER_FILTER,
		networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER,
		// a listener may contain inline routes, to which these patches apply
		networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST,
		networking.EnvoyFilter_HTTP_ROUTE},
	resource.RouteType: {networking.EnvoyFilter_ROUTE_CONFIGURATION,
		networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE},
	resource.ClusterType: {networking.EnvoyFilter_CLUSTER},
}

// candidates returns the patches that may match a resource, according to its name.
func (s *Set) candidates(r *resource.Resource) []*patch {
	if s.Empty() {
		return nil
	}
	to := kinds[r.Type]
	a := &application{context: s.contextOf(r)}
	var found []*patch
	for _, p := range s.patches {
		if !slices.Contains(to, p.applyTo) {
			continue
		}
		switch r.Type {
		case resource.ClusterType:
			if p.operation == networking.EnvoyFilter_Patch_ADD || !p.in(a.context) ||
				!meetsCluster(p, r.Name) {
				continue
			}
		case resource.RouteType:
			if !p.in(a.context) || !a.meetsRoutes(p, r.Name) {
				continue
			}
		case resource.ListenerType:
			if name := listenerMatch(p).GetName(); name != "" && name != r.Name ||
				p.applyTo == networking.EnvoyFilter_LISTENER &&
					p.operation == networking.EnvoyFilter_Patch_ADD {
				continue
			}
		}
		found = append(found, p)
	}
	return found
}

// contextOf returns the context of a resource (see EnvoyFilter.PatchContext), derived from its
// name. For a listener, the field traffic_direction is more precise.
func (s *Set) contextOf(r *resource.Resource) context {
	switch {
	case s.node.Type == model.Router:
		return networking.EnvoyFilter_GATEWAY
	case strings.HasPrefix(r.Name, "inbound|"), r.Name == "InboundPassthroughCluster",
		r.Name == virtualInbound:
		return networking.EnvoyFilter_SIDECAR_INBOUND
	}
	return networking.EnvoyFilter_SIDECAR_OUTBOUND
}

func (s *Set) apply(r *resource.Resource, patches []*patch) (Result, error) {
	a := &application{patches: map[applyTo][]*patch{}, context: s.contextOf(r),
		used: map[*patch]bool{}}
	for _, p := range patches {
		a.patches[p.applyTo] = append(a.patches[p.applyTo], p)
	}
	var message proto.Message
	var keep func() bool
	switch r.Type {
	case resource.ListenerType:
		l := &listenerv3.Listener{}
		message, keep = l, func() bool {
			if l.TrafficDirection == corev3.TrafficDirection_INBOUND &&
				s.node.Type == model.Sidecar {
				a.context = networking.EnvoyFilter_SIDECAR_INBOUND
			}
			return a.listener(l)
		}
	case resource.RouteType:
		c := &routev3.RouteConfiguration{}
		message, keep = c, func() bool { a.routes(c); return true }
	default:
		c := &clusterv3.Cluster{}
		message, keep = c, func() bool { return a.cluster(c) }
	}
	if err := proto.Unmarshal(r.EncodedMessage(), message); err != nil {
		return Result{}, fmt.Errorf("decode %s: %w", r.Name, err)
	}
	stays := keep()
	switch {
	case a.failed != nil:
		return Result{}, a.failed
	case len(a.used) == 0:
		return Result{Resource: r, Problems: a.problems}, nil
	case !stays:
		return Result{Problems: a.problems, UsedPatches: a.entries(patches)}, nil
	}
	if name := nameOf(message, r.Name); name != r.Name {
		return Result{}, fmt.Errorf("the patch would rename the resource to %s", name)
	}
	out, err := resource.New(r.Name, message, a.origins(patches, r)...)
	return Result{Resource: out, Problems: a.problems, UsedPatches: a.entries(patches)}, err
}

// entries returns, as a Patch, each of the patches that had an effect.
func (a *application) entries(patches []*patch) []Patch {
	var used []Patch
	for _, p := range patches {
		if a.used[p] {
			used = append(used, p.entry())
		}
	}
	return used
}

// nameOf returns the field "name" of a message, or was if the message has no name.
func nameOf(message proto.Message, was string) string {
	if named, ok := message.(interface{ GetName() string }); ok && named.GetName() != "" {
		return named.GetName()
	}
	return was
}

// origins returns the origins of the EnvoyFilters that had an effect, the last one first, followed
// by the resource's own. If Envoy refuses a patched resource, the last patch is the most likely
// cause.
func (a *application) origins(patches []*patch, r *resource.Resource) []resource.Origin {
	var origins []resource.Origin
	for _, p := range slices.Backward(patches) {
		if origin := p.object.Origin(); a.used[p] && !slices.Contains(origins, origin) {
			origins = append(origins, origin)
		}
	}
	return append(origins, r.Origins...)
}
