package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/spelling"
)

const (
	securityGroup   = object.SecurityGroup
	telemetryGroup  = object.TelemetryGroup
	extensionsGroup = object.ExtensionsGroup
)

// groups maps Istio's API groups to whether unknown kinds of the group may restrict access. For
// other groups, see restrictingGroup.
var groups = map[string]bool{securityGroup: true, extensionsGroup: true, apiGroup: false,
	telemetryGroup: false, "install.istio.io": false}

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

// restrictions has Istio's kinds that can restrict access, with their API groups.
var restrictions = restrictingKinds()

func restrictingKinds() map[string]string {
	all := map[string]string{}
	for _, group := range object.Groups() {
		for _, name := range object.Kinds(group) {
			if object.Kind(name).CanRestrictAccess() {
				all[name] = group
			}
		}
	}
	return all
}

// policyKinds returns the kinds that can restrict access, to which misspelt kinds are compared.
func policyKinds() []string { return slices.Sorted(maps.Keys(restrictions)) }

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
	if near := spelling.NearestWordWithin(name, slices.Sorted(maps.Keys(groups)),
		typos); near != "" {
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

// restrictingKind returns the restricting kind with a name, which may be misspelt; "" if there is
// none.
func restrictingKind(name string) string {
	if _, known := restrictions[name]; known {
		return name
	}
	if groupOf(name) != "" {
		return ""
	}
	return spelling.NearestWord(name, policyKinds())
}

// mayRestrict reports whether a text mentions a kind that can restrict access, or the API group of
// such kinds.
func mayRestrict(text []byte) bool {
	for kind, group := range restrictions {
		if bytes.Contains(text, []byte(kind)) || bytes.Contains(text, []byte(group)) {
			return true
		}
	}
	return false
}

// restriction reads an object of a kind that can restrict access. It adds a denial if the object
// restricts access and cannot be read.
func (r *reader) restriction(d *decoder, node *yaml.Node, h *header, found *document, depth int) {
	of, known := restrictions[h.kind]
	switch {
	case !known:
		fix := "remove it"
		if near := spelling.NearestWord(h.kind, policyKinds()); near != "" {
			fix = fmt.Sprintf("did you mean %s?", near)
		}
		d.refuse(node, &path{name: "kind"}, fmt.Sprintf("kind %s of %q is unknown, and may restrict "+
			"access", h.kind, h.apiVersion), fix)
		r.deny(node, h, found)
		return
	case group(h.apiVersion) != of:
		d.refuse(node, &path{name: "apiVersion"}, fmt.Sprintf("%q is not an API of %s",
			h.apiVersion,
			h.kind), "write "+of+"/"+versions[of][0]+", or remove it")
		r.deny(node, h, found)
		return
	}
	r.supported(d, node, h, found, depth)
	if d.failed && mayRestrictBySpec(h) {
		r.deny(node, h, found)
	}
}

// mayRestrictBySpec reports whether an invalid object of a supported kind may restrict access: its
// spec restricts access or is unreadable.
func mayRestrictBySpec(h *header) bool {
	spec := object.NewSpec(object.Kind(h.kind))
	if h.spec == nil {
		return object.SpecRestrictsAccess(spec)
	}
	d := &decoder{problemAt: func(int, string) object.Problem { return object.Problem{} }}
	d.message(h.spec, spec.ProtoReflect(), nil, 0)
	return d.failed || object.SpecRestrictsAccess(spec)
}
