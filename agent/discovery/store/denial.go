package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
	api "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// An unreadable policy must not admit requests that it may forbid. Unless its last good version is
// in force, an AuthorizationPolicy replaces it, called its denial. A denial denies everything to
// the workloads that the policy selects; if the selector is unreadable, to the namespace's
// workloads; if nothing is readable, to all workloads of the mesh.

// neverValid is the usual reason of a denial.
const neverValid = "no valid version of it is known"

const correctIt = "correct or remove it"

// denial replaces a policy that cannot be read and has no last good version.
type denial struct {
	policy object.Key // key of the policy; Kind and Name may be unknown
	// AuthorizationPolicy that denies; its Name is set once the whole file was read
	object  *object.Object
	because string
	fix     string
}

// denyEverything returns the spec of an AuthorizationPolicy that denies everything to all
// workloads.
func denyEverything() *security.AuthorizationPolicy {
	return &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_DENY,
		Rules: []*security.Rule{{}}}
}

// deny adds a denial for an unreadable object. If the object has a last good version, that stays in
// force, and the denial is dropped later. If the object's kind is unreadable, a last good version
// of any kind counts.
func (r *reader) deny(node *yaml.Node, h *header, found *document) {
	namespace, ok := r.namespaceOf(node)
	// the line "---" between two documents may be missing, so the text may contain another policy
	if !ok {
		r.unidentified(found)
		found.isPolicy = true
		return
	}
	n := denial{object.Key{Kind: object.Kind(h.kind), Namespace: namespace, Name: h.name},
		&object.Object{Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: namespace},
			APIVersion: securityGroup + "/v1", File: r.file, Line: node.Line, Spec: selected(h.spec)},
		neverValid, correctIt}
	if namespace == "" {
		n.object.NamespaceDefaulted, n.object.Namespace, n.policy.Namespace = true, r.namespace, r.namespace
	}
	if r.validate != nil && slices.ContainsFunc(r.validate(n.object),
		func(f object.Finding) bool { return f.Severity == condition.Error }) {
		n.object.Spec = denyEverything()
	}
	dry, _ := strconv.ParseBool(h.annotations[object.DryRunAnnotation])
	// a policy in dry run is not enforced, so it needs no denial
	if !dry || n.policy.Kind != object.AuthorizationPolicy {
		found.denials = append(found.denials, n)
	}
	found.broken = found.broken || h.name == ""
	for _, kind := range n.kinds() {
		found.bad = append(found.bad, object.Key{Kind: kind, Namespace: n.policy.Namespace,
			Name: h.name})
	}
}

// kinds returns the kinds that the replaced policy may have.
func (n denial) kinds() []object.Kind {
	if _, known := restrictions[string(n.policy.Kind)]; known {
		return []object.Kind{n.policy.Kind}
	}
	var all []object.Kind
	for _, name := range policyKinds() {
		all = append(all, object.Kind(name))
	}
	return all
}

// isDenial reports whether an object is a denial, which replaces an unreadable policy. The name of
// a denial, unlike that of any other AuthorizationPolicy, is not a DNS subdomain.
func isDenial(o *object.Object) bool {
	return o.Kind == object.AuthorizationPolicy && !isSubdomain(o.Name)
}

// isReplacedBy reports whether a last good version replaces the denial, because it is the denial's
// policy. If the policy's name is unknown, kind and scope must match.
func (n denial) isReplacedBy(o *object.Object) bool {
	if n.policy.Name == "" {
		return slices.Contains(n.kinds(), o.Kind) && o.Namespace == n.policy.Namespace &&
			isSubdomain(o.Name) && proto.Equal(denyScope(o.Spec), n.object.Spec)
	}
	return n.isOf(o.Key)
}

// isOf reports whether the denial replaces a policy.
func (n denial) isOf(policy object.Key) bool {
	return policy.Name == n.policy.Name && policy.Namespace == n.policy.Namespace &&
		slices.Contains(n.kinds(), policy.Kind)
}

// namespaceOf returns the namespace that an object names, "" if it names none. ok is false if that
// cannot be determined.
func (r *reader) namespaceOf(node *yaml.Node) (namespace string, ok bool) {
	d := &decoder{problemAt: func(int, string) object.Problem { return object.Problem{} }}
	d.pairs(node, nil, func(key, value *yaml.Node) {
		value, ok := d.visit(value, nil, 0)
		if key.Value != "metadata" || !ok {
			return
		}
		if value.Kind != yaml.MappingNode {
			d.failed = true
			return
		}
		d.pairs(value, nil, func(key, value *yaml.Node) {
			value, ok := d.visit(value, nil, 0)
			if ok && key.Value == "namespace" && !isNull(value) {
				namespace = d.text(value, nil)
				d.failed = d.failed || namespace != "" && !isLabel(namespace)
			}
		})
	})
	return namespace, !d.failed
}

// denyScope returns the spec of a denial for the workloads that a valid policy selects.
func denyScope(spec proto.Message) *security.AuthorizationPolicy {
	denies := denyEverything()
	if of, ok := spec.(interface{ GetSelector() *api.WorkloadSelector }); ok {
		denies.Selector = of.GetSelector()
	}
	if of, ok := spec.(interface {
		GetTargetRef() *api.PolicyTargetReference
	}); ok {
		denies.TargetRef = of.GetTargetRef()
	}
	if of, ok := spec.(interface {
		GetTargetRefs() []*api.PolicyTargetReference
	}); ok {
		denies.TargetRefs = of.GetTargetRefs()
	}
	return denies
}

// scopeFields are the fields by which policies of all kinds select workloads.
var scopeFields = []string{"selector", "targetRef", "targetRefs"}

// selected returns the spec of a denial for the workloads that a policy's spec selects; for the
// whole namespace if the selector cannot be read.
func selected(spec *yaml.Node) *security.AuthorizationPolicy {
	if spec == nil || spec.Kind != yaml.MappingNode {
		return denyEverything()
	}
	twice := false // one of scopeFields occurs twice
	d := &decoder{problemAt: func(_ int, field string) object.Problem {
		twice = twice || slices.Contains(scopeFields, field)
		return object.Problem{}
	}}
	scope := &yaml.Node{Kind: yaml.MappingNode, Line: spec.Line}
	d.pairs(spec, nil, func(key, value *yaml.Node) {
		if slices.Contains(scopeFields, key.Value) {
			scope.Content = append(scope.Content, key, value)
		}
	})
	unclear := twice || len(d.problems) >= maxProblems
	denies := denyEverything()
	d.failed = false
	if d.message(scope, denies.ProtoReflect(), nil, 0); d.failed || unclear {
		return denyEverything()
	}
	return denies
}

// addDenials adds the denials of all documents, except those of policies whose last good version is
// in force. If unreadable text may contain further policies, it adds a denial of everything.
// unnamed has the last good policies that no invalid object names.
func (f *file) addDenials(path string, denials []denial, unnamed []*object.Object) {
	unnamed, ok := f.withoutMentioned(unnamed)
	if !ok {
		f.denyAll(path)
	}
	for _, n := range denials {
		at := slices.IndexFunc(unnamed, n.isReplacedBy)
		switch {
		case n.policy.Name != "" && slices.ContainsFunc(f.held, n.isReplacedBy):
		case n.policy.Name == "" && at >= 0:
			unnamed = slices.Delete(unnamed, at, at+1)
		default:
			f.objects = append(f.objects, n.object)
			f.problems = append(f.problems, n.problem())
		}
	}
}

// denyAll adds a denial for all workloads, because the file may contain unknown policies. The
// denial has the message of the file's first error.
func (f *file) denyAll(path string) {
	o := &object.Object{Key: object.Key{Kind: object.AuthorizationPolicy,
		Name: "(unreadable " + path + ")"}, APIVersion: securityGroup + "/v1", File: path, Line: 1,
		Spec: denyEverything()}
	if f.input {
		o.Line = 0
	}
	if slices.ContainsFunc(f.objects, func(p *object.Object) bool { return p.Key == o.Key }) {
		return
	}
	f.objects = append(f.objects, o)
	for i := range f.problems {
		if f.problems[i].Severity == condition.Error {
			f.problems[i].Message += "; until then every request to all workloads is denied, because " +
				"it may have policies of which no earlier version is known"
			break
		}
	}
}

// denials returns the denials of all documents, followed by more. Each gets a unique name that no
// object can have.
func (f *file) denials(path string, more []denial) (all []denial) {
	for _, d := range f.documents {
		more = append(more, d.denials...)
	}
	names := map[string]int{}
	for _, n := range more {
		o := *n.object
		o.Name = strings.TrimSpace(fmt.Sprintf("%s (invalid %s in %s", n.policy.Name, n.policy.Kind,
			path))
		if names[o.Name]++; names[o.Name] > 1 {
			o.Name += fmt.Sprintf(", number %d", names[o.Name])
		}
		o.Name += ")"
		n.object = &o
		all = append(all, n)
	}
	return all
}

// denialOf returns the denial of a policy, whose spec, and with it the selector, may be missing.
func denialOf(o *object.Object) denial {
	denied := *o
	denied.Kind, denied.Name, denied.APIVersion = object.AuthorizationPolicy, "", securityGroup+"/v1"
	denied.Annotations, denied.Spec = nil, denyEverything()
	return denial{o.Key, &denied, "its spec may be in a document of the file that is invalid",
		correctIt}
}

// problem returns the problem that a policy's denial is in force.
func (n denial) problem() object.Problem {
	spec := n.object.Spec.(*security.AuthorizationPolicy)
	whom := "the workloads that it selects"
	if spec.Selector == nil && spec.TargetRef == nil && len(spec.TargetRefs) == 0 {
		whom = "its whole namespace"
	}
	return object.Problem{File: n.object.File, Line: n.object.Line, Object: n.policy.String(),
		Severity: condition.Error, Message: "every request to " + whom + " is denied, because " +
			n.because, Fix: n.fix}
}
