package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	extensions "istio.io/api/extensions/v1alpha1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/spelling"
)

const (
	securityGroup   = object.SecurityGroup
	telemetryGroup  = object.TelemetryGroup
	extensionsGroup = object.ExtensionsGroup
)

// groups maps Istio's API groups to whether an unknown kind of the group may restrict access. A
// kind of an unknown group of Istio may.
var groups = map[string]bool{securityGroup: true, extensionsGroup: true, apiGroup: false,
	telemetryGroup: false, "install.istio.io": false}

// restriction describes a kind that can restrict access. An unsupported kind has a spec.
type restriction struct {
	group string
	spec  func() proto.Message
	// reports whether an object with the spec restricts access; also called with an empty spec
	restricts func(spec proto.Message) bool
}

// unrestricting has the kinds of each API group whose kinds do not restrict access.
var unrestricting = map[string][]string{apiGroup: object.Kinds(apiGroup),
	telemetryGroup: object.Kinds(telemetryGroup)}

// groupOf returns the API group of a kind that does not restrict access; "" if the kind is unknown.
func groupOf(kind string) string {
	for name, kinds := range unrestricting {
		if slices.Contains(kinds, kind) {
			return name
		}
	}
	return ""
}

// misgrouped reports whether an object has a supported kind of another API group.
func misgrouped(h *header) bool {
	of := groupOf(h.kind)
	return of != "" && of != group(h.apiVersion)
}

// restrictions has Istio's kinds that can restrict access, by name: those that are not supported,
// and those that package object supports.
var restrictions = withSupported(map[string]restriction{
	"TrafficExtension": {extensionsGroup,
		func() proto.Message { return &extensions.TrafficExtension{} }, extensionRestricts},
})

// withSupported adds the supported kinds that restrict access, which have no spec.
func withSupported(all map[string]restriction) map[string]restriction {
	for _, group := range []string{securityGroup, extensionsGroup} {
		for _, name := range object.Kinds(group) {
			if object.Kind(name).Restricts() {
				all[name] = restriction{group: group}
			}
		}
	}
	return all
}

// supportedPolicies returns the supported kinds that can restrict access, from which misspelt kinds
// are corrected.
func supportedPolicies() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(restrictions)) {
		if restrictions[name].spec == nil {
			names = append(names, name)
		}
	}
	return names
}

// mayRestrict reports whether an object has a kind that can restrict access, or is in an API group
// that may have such kinds.
func (h *header) mayRestrict() bool {
	_, known := restrictions[h.kind]
	return h.restricts || known || restrictingKind(h.kind) != "" && !foreign(h.apiVersion) ||
		restrictingGroup(group(h.apiVersion))
}

// restrictingGroup reports whether an unknown kind of an API group may restrict access.
func restrictingGroup(name string) bool {
	if restricting, known := groups[name]; known {
		return restricting
	}
	const typos = 3
	if near := spelling.NearestWithin(name, slices.Sorted(maps.Keys(groups)), typos); near != "" {
		return groups[near]
	}
	return strings.HasSuffix("."+name, ".istio.io")
}

// resemblesPolicy reports whether a spec is a valid spec of a kind that restricts access, and has
// more fields than a selector.
func resemblesPolicy(spec *yaml.Node) bool {
	for _, name := range object.Kinds(securityGroup) {
		m := object.NewSpec(object.Kind(name)).ProtoReflect()
		d := &decoder{problemAt: func(int, string) object.Problem { return object.Problem{} }}
		if d.message(spec, m, nil, 0); d.failed {
			continue
		}
		resembles := false
		m.Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			resembles = resembles || !slices.Contains(scopeFields, field.JSONName())
			return true
		})
		if resembles {
			return true
		}
	}
	return false
}

// restrictingKind returns the kind that can restrict access and has a name, which may be misspelt;
// "" if there is none.
func restrictingKind(name string) string {
	if _, known := restrictions[name]; known {
		return name
	}
	if groupOf(name) != "" {
		return ""
	}
	return spelling.Nearest(name, slices.Sorted(maps.Keys(restrictions)))
}

// mayRestrict reports whether a text mentions a kind that can restrict access, or the API group of
// such kinds.
func mayRestrict(text []byte) bool {
	for kind, of := range restrictions {
		if bytes.Contains(text, []byte(kind)) || bytes.Contains(text, []byte(of.group)) {
			return true
		}
	}
	return false
}

// restriction reads an object of a kind that can restrict access. It adds a denial if the object
// restricts access and either is not supported or cannot be read.
func (r *reader) restriction(d *decoder, node *yaml.Node, h *header, found *document, depth int) {
	kind, known := restrictions[h.kind]
	switch {
	case !known:
		fix := "remove it"
		if near := spelling.Nearest(h.kind, supportedPolicies()); near != "" {
			fix = fmt.Sprintf("did you mean %s?", near)
		}
		d.refuse(node, &path{name: "kind"}, fmt.Sprintf("kind %s of %q is unknown, and may restrict "+
			"access", h.kind, h.apiVersion), fix)
		r.deny(node, h, found, neverValid)
		return
	case group(h.apiVersion) != kind.group:
		d.refuse(node, &path{name: "apiVersion"}, fmt.Sprintf("%q is not an API of %s",
			h.apiVersion,
			h.kind), "write "+kind.group+"/v1, or remove it")
		r.deny(node, h, found, neverValid)
		return
	case kind.spec == nil:
		r.supported(d, node, h, found, depth)
		if d.failed && mayRestrictBySpec(h) {
			r.deny(node, h, found, neverValid)
		}
		return
	}
	spec := kind.spec()
	if h.spec != nil {
		d.message(h.spec, spec.ProtoReflect(), &path{name: "spec"}, depth+1)
	}
	if !d.failed && !kind.restricts(spec) {
		d.report(condition.Warning, node.Line, nil,
			fmt.Sprintf("kind %s is not supported by this version of Outrider and has no effect",
				h.kind),
			"remove it; this one restricts nothing")
		return
	}
	r.deny(node, h, found, fmt.Sprintf("kind %s restricts access and is not supported by this version "+
		"of Outrider", h.kind))
}

// mayRestrictBySpec reports whether an invalid object of a supported kind may restrict access: it
// does, or its spec cannot be read.
func mayRestrictBySpec(h *header) bool {
	spec := object.NewSpec(object.Kind(h.kind))
	if h.spec == nil {
		return object.SpecRestricts(spec)
	}
	d := &decoder{problemAt: func(int, string) object.Problem { return object.Problem{} }}
	d.message(h.spec, spec.ProtoReflect(), nil, 0)
	return d.failed || object.SpecRestricts(spec)
}

func extensionRestricts(spec proto.Message) bool {
	phase := spec.(*extensions.TrafficExtension).Phase
	return phase == extensions.TrafficExtension_AUTHN || phase == extensions.TrafficExtension_AUTHZ
}
