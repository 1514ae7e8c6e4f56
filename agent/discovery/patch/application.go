package patch

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// application applies the matching patches to one resource.
type application struct {
	patches  map[applyTo][]*patch // patches by kind, in order of application
	context  context
	used     map[*patch]bool // patches that had an effect on the resource
	problems []object.Problem
	failed   error // why the patched resource is invalid
}

// of returns the patches of a kind whose context is that of the resource.
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

// warn records why a patch has no effect on the resource.
func (a *application) warn(p *patch, message, fix string) {
	a.problems = append(a.problems, p.problem(condition.Warning, message, fix))
}

// mergeInto merges a patch's value into a message of the same type.
func (a *application) mergeInto(p *patch, dst proto.Message) bool {
	replace, ok := p.merges()
	if ok {
		merge(dst.ProtoReflect(), p.value.ProtoReflect(), replace)
		a.use(p)
	}
	return ok
}

// apply calls change for every patch for which meets is true, in order. It returns false as soon as
// a patch removes the element.
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

// configured is a filter or transport socket: a message with a name and a typed_config.
type configured interface {
	GetName() string
	GetTypedConfig() *anypb.Any
}

// mergeConfig merges the patch's value by into a filter or transport socket, and returns the name
// and typed_config of the result. It does not merge other fields.
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
