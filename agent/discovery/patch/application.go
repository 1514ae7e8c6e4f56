package patch

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// application is the patches on trial on one resource.
type application struct {
	patches  map[applyTo][]*patch // in order
	context  context
	used     map[*patch]bool // that did something
	problems []object.Problem
	failed   error // why what came out is not valid
}

// of returns the patches of a kind that are for the context.
func (a *application) of(kind applyTo) []*patch {
	var found []*patch
	for _, p := range a.patches[kind] {
		if p.in(a.context) {
			found = append(found, p)
		}
	}
	return found
}

func (a *application) use(p *patch) { a.used[p] = true }

func (a *application) invalid(err error) {
	if a.failed == nil {
		a.failed = err
	}
}

// warn tells why a patch is not carried out where it is meant to be.
func (a *application) warn(p *patch, message, cure string) {
	a.problems = append(a.problems, p.problem(condition.Warning, message, cure))
}

// mergeInto lays a patch's value over a message of its type.
func (a *application) mergeInto(p *patch, dst proto.Message) bool {
	replace, ok := p.merges()
	if ok {
		merge(dst.ProtoReflect(), p.value.ProtoReflect(), replace)
		a.use(p)
	}
	return ok
}

// apply has patches change what they meet, in their order; false once one of them removes it.
func (a *application) apply(patches []*patch, meets func(*patch) bool, change func(*patch)) bool {
	for _, p := range patches {
		switch {
		case !meets(p):
		case p.operation == networking.EnvoyFilter_Patch_REMOVE:
			a.use(p)
			return false
		default:
			change(p)
		}
	}
	return true
}

// configured is what has a name and a packed configuration: filters and transport sockets.
type configured interface {
	GetName() string
	GetTypedConfig() *anypb.Any
}

// mergeConfig merges a filter's configuration and returns its name and its configuration. Other
// fields stay as they are.
func (a *application) mergeConfig(p *patch, filter, by configured) (name string,
	config *anypb.Any) {
	name, config = filter.GetName(), filter.GetTypedConfig()
	replace, ok := p.merges()
	if !ok {
		return name, config
	}
	a.use(p)
	if config == nil {
		a.warn(p, fmt.Sprintf("%s has no typed_config to merge with", name),
			"write operation: REPLACE")
		return name, config
	}
	if by.GetName() != "" {
		name = by.GetName()
	}
	if by.GetTypedConfig() != nil {
		merged, err := mergeAny(config, by.GetTypedConfig(), replace)
		if err != nil {
			a.warn(p, fmt.Sprintf("not merged into %s: %v", filter.GetName(), err),
				"match the filter's name, and write its type")
			return filter.GetName(), config
		}
		config = merged
	}
	return name, config
}

func listenerMatch(p *patch) *networking.EnvoyFilter_ListenerMatch { return p.match.GetListener() }

func routesMatch(p *patch) *networking.EnvoyFilter_RouteConfigurationMatch {
	return p.match.GetRouteConfiguration()
}
