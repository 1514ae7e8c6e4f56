package patch

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// AddedResources returns the listeners, clusters and extension configurations that patches add.
func (s *Set) AddedResources() (resources []*resource.Resource, problems []object.Problem) {
	if s.Empty() {
		return nil, nil
	}
	added := map[resource.Key]*patch{}
	for _, p := range s.patches {
		if p.operation != networking.EnvoyFilter_Patch_ADD || !s.adds(p) {
			continue
		}
		name := nameOf(p.value, "")
		if name == "" {
			problems = append(problems, p.problem(condition.Error, "what it adds has no name",
				"write value.name"))
			continue
		}
		out, err := resource.New(name, withStatName(p.value), p.object.Origin())
		if err != nil {
			problems = append(problems, p.problem(condition.Error,
				"Envoy would refuse the added resource: "+err.Error(), "correct the value"))
			continue
		}
		key := resource.Key{Type: out.Type, Name: out.Name}
		if by := added[key]; by != nil {
			problems = append(problems, p.problem(condition.Warning,
				fmt.Sprintf("%s %s is added by %s too, which counts", kind(out.Type), name,
					by.object.Position()), "rename one"))
			continue
		}
		added[key] = p
		resources = append(resources, out)
	}
	return resources, problems
}

// withStatName sets the alt_stat_name of an added cluster that has none, so that its statistics are
// named like those of translated clusters.
func withStatName(value proto.Message) proto.Message {
	c, ok := value.(*clusterv3.Cluster)
	if !ok || c.AltStatName != "" {
		return value
	}
	c = proto.CloneOf(c)
	c.AltStatName = mesh.DelimitedStatName(c.Name)
	return c
}

// adds reports whether a patch adds a resource for the proxy. The context of a patch for an
// extension configuration does not matter.
func (s *Set) adds(p *patch) bool {
	return p.applyTo == networking.EnvoyFilter_EXTENSION_CONFIG || addable(p.applyTo) &&
		s.concerns(p)
}

// addable reports whether patches with this applyTo can add resources.
func addable(to applyTo) bool {
	return to == networking.EnvoyFilter_LISTENER || to == networking.EnvoyFilter_CLUSTER ||
		to == networking.EnvoyFilter_EXTENSION_CONFIG
}

// Patch identifies an element of an EnvoyFilter's configPatches.
type Patch struct {
	Object *object.Object
	Index  int
}

// FilterName returns the name of the filter that a patch adds or changes; "" if the patch is not
// for a filter.
func (e Patch) FilterName() string {
	in := e.Object.Spec.(*networking.EnvoyFilter).ConfigPatches[e.Index]
	match := in.GetMatch().GetListener()
	var matched string
	switch in.ApplyTo {
	case networking.EnvoyFilter_LISTENER_FILTER:
		matched = match.GetListenerFilter()
	case networking.EnvoyFilter_NETWORK_FILTER:
		matched = match.GetFilterChain().GetFilter().GetName()
	case networking.EnvoyFilter_HTTP_FILTER:
		matched = match.GetFilterChain().GetFilter().GetSubFilter().GetName()
	default:
		return ""
	}
	if name := in.GetPatch().GetValue().GetFields()["name"].GetStringValue(); name != "" {
		return name
	}
	return matched
}

// UnusedPatches returns a problem for each patch for this proxy that had no effect, with the reason
// if known.
func (s *Set) UnusedPatches(used map[Patch]bool) []object.Problem {
	var problems []object.Problem
	for _, p := range s.patches {
		added := p.operation == networking.EnvoyFilter_Patch_ADD && addable(p.applyTo)
		if !used[p.entry()] && !added && s.concerns(p) {
			problems = append(problems, p.problem(condition.Info,
				"matches nothing of this proxy, and so does nothing",
				"compare match with what outrider proxy listeners, routes and clusters show"))
		}
	}
	for _, p := range s.unversioned {
		problems = append(problems, p.problem(condition.Warning,
			"matches a version of Istio's proxy, but this proxy has none: no effect",
			"remove proxyVersion, or write ISTIO_VERSION into [node] metadata"))
	}
	return problems
}

// concerns reports whether a patch is for a resource or context that this type of proxy may have.
func (s *Set) concerns(p *patch) bool {
	if s.node.Type == model.Router {
		return p.in(networking.EnvoyFilter_GATEWAY)
	}
	return p.in(networking.EnvoyFilter_SIDECAR_INBOUND) ||
		p.in(networking.EnvoyFilter_SIDECAR_OUTBOUND)
}
