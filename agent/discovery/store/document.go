package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/spelling"
)

const apiGroup = object.NetworkingGroup

// document holds the objects and problems of one YAML document.
type document struct {
	objects      []*object.Object
	bad          []object.Key // keys of invalid objects, whose last good versions stay in force
	problems     []object.Problem
	broken       bool         // an object has no readable kind, namespace or name
	bare         []object.Key // keys of policies in objects whose spec is missing or incomplete
	denials      []denial
	unidentified bool // the document is broken, and its object may be a policy of unknown name
	isPolicy     bool // the unidentified object is certainly a policy
	headless     bool // the text begins like the middle of a spec; see the function headless
	// if unidentified: policies that the text mentions; see reader.mentioned
	mentioned []object.Key

	filters []*validated // EnvoyFilters that validateAll has not checked yet
	// invalid objects whose only errors are UnknownField; see Options.TolerateUnknownFields
	tolerable []*object.Object
	unknown   bool      // an object has an UnknownField
	again     time.Time // when to validate the document again; see ValidationResult
}

// reader reads the documents of one file.
type reader struct {
	file      string
	namespace string
	validate  func(*object.Object) []object.Finding
	text      []byte // text of the current document
	input     bool   // the text is not a file; see SourceInput
}

// read parses one document. first is the document's first line in the file.
func (r *reader) read(content []byte, first int) (found document) {
	content = withoutMark(content)
	r.text = content
	found.headless = headless(content)
	parts := 0 // number of YAML documents; a line "..." ends one
	defer func() {
		for _, o := range found.objects {
			if o.Kind.CanRestrictAccess() && found.unidentified && parts > 1 {
				found.bare = append(found.bare, o.Key)
			}
		}
		if found.unidentified {
			found.mentioned = r.mentioned()
		}
		if found.isPolicy && len(found.mentioned) == 0 {
			found.mentioned = []object.Key{{}}
		}
	}()
	// the text is not a file, so its objects need no line numbers and the faster JSON parser can be
	// used
	if r.input {
		if root := parseJSON(content); root != nil {
			r.object(&decoder{wide: true}, root, &found, 0)
			return found
		}
	}
	parser := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var root yaml.Node
		err := parser.Decode(&root)
		if errors.Is(err, io.EOF) {
			return found
		}
		parts++
		if err != nil {
			message := yamlError(err)
			r.unidentified(&found)
			line := errorLine(content, message)
			found.problems = append(found.problems, object.Problem{File: r.file,
				Line:     first + line - 1,
				Severity: condition.Error, Message: notYAML(content, line, message)})
			return found
		}
		shift(&root, first-1)
		if len(root.Content) == 1 {
			d := &decoder{wide: r.input}
			r.object(d, root.Content[0], &found, 0)
		}
	}
}

// shift adds a number to the lines of all nodes in a tree. It does not resolve aliases, which point
// into the same tree.
func shift(node *yaml.Node, by int) {
	if by == 0 {
		return
	}
	node.Line += by
	for _, child := range node.Content {
		shift(child, by)
	}
}

// object reads one object, or the items of a list.
func (r *reader) object(d *decoder, node *yaml.Node, found *document, depth int) {
	object1 := func(h *header) string {
		if h == nil || h.name == "" {
			return ""
		}
		return object.Key{Kind: object.Kind(h.kind), Namespace: h.namespace, Name: h.name}.String()
	}
	var current *header
	d.problems, d.failed = nil, false
	d.problemAt = func(line int, field string) object.Problem {
		return object.Problem{File: r.file, Line: line, Object: object1(current), Field: field}
	}
	defer func() { found.problems = append(found.problems, d.problems...); d.problems = nil }()

	node, ok := d.visit(node, nil, depth)
	switch {
	case !ok:
		r.unidentified(found)
		return
	case isNull(node) && depth == 0:
		return
	case node.Kind != yaml.MappingNode:
		r.unidentified(found)
		d.refuse(node, nil, "an object must be a mapping, this is "+describe(node),
			"begin it with apiVersion, kind, metadata and spec")
		return
	}
	h := r.header(d, node, depth)
	current = h
	switch {
	case h.items != nil && (d.failed || h.isIstios() && !strings.HasSuffix(h.kind, "List")):
		r.unidentified(found)
		d.refuse(h.items, &path{name: "items"}, "not the items of a list", "correct the object around "+
			"them")
	case d.failed && h.mayRestrict():
		r.deny(node, h, found)
	case d.failed:
		if _, ok := r.namespaceOf(node); !ok { // the separator between two documents may be missing
			r.unidentified(found)
		}
		r.refused(h, found)
	case h.kind == "":
		r.unidentified(found)
		d.refuse(node, &path{name: "kind"}, "the object has no kind", "")
	case h.kind == "List" || h.items != nil && (strings.HasSuffix(h.kind, "List") ||
		!h.isIstios() && mayRestrict(r.text)): // the kind may be misspelt
		r.list(d, node, h, found, depth)
	case h.mayRestrict():
		r.restriction(d, node, h, found, depth)
	case unrestricting[group(h.apiVersion)] == nil || misgrouped(h):
		if of := groupOf(h.kind); of != "" && !foreign(h.apiVersion) {
			found.broken = true
			d.refuse(node, &path{name: "apiVersion"}, fmt.Sprintf("%q is not an API of %s",
				h.apiVersion, h.kind), "write "+of+"/v1")
			return
		}
		d.report(condition.Warning, node.Line, nil,
			fmt.Sprintf("kind %s of %q is not supported by this version of Outrider and has no "+
				"effect", h.kind, h.apiVersion), "remove it")
	default:
		r.supported(d, node, h, found, depth)
	}
}

// list reads the items of a list of objects.
func (r *reader) list(d *decoder, node *yaml.Node, h *header, found *document, depth int) {
	at := &path{name: "items"}
	switch {
	case h.items == nil:
		r.unidentified(found)
		d.refuse(node, at, "the list has no items",
			"write objects into it, or [] if there are none")
	case h.items.Kind != yaml.SequenceNode:
		r.unidentified(found)
		d.refuse(h.items, at, "must be a list, is "+describe(h.items), "put - before each object")
	default:
		problems := d.problems
		for _, item := range h.items.Content {
			r.object(d, item, found, depth+1)
		}
		d.problems = problems
	}
}

// versions lists the supported versions of each API group.
var versions = map[string][]string{apiGroup: {"v1", "v1beta1", "v1alpha3"},
	securityGroup: {"v1", "v1beta1"}, telemetryGroup: {"v1", "v1alpha1"},
	extensionsGroup: {"v1alpha1"}}

// supported reads an object of an API group that has supported kinds.
func (r *reader) supported(d *decoder, node *yaml.Node, h *header, found *document, depth int) {
	apiGroup, version, _ := strings.Cut(h.apiVersion, "/")
	kind := object.Kind(h.kind)
	spec := object.NewSpec(kind)
	switch {
	case !slices.Contains(versions[apiGroup], version):
		d.refuse(node, &path{name: "apiVersion"},
			fmt.Sprintf("unknown version %q of %s", version, apiGroup),
			"write "+oneOf(versions[apiGroup]))
	case spec == nil:
		if near := spelling.NearestWord(h.kind, unrestricting[apiGroup]); near != h.kind {
			fix := ""
			if near != "" {
				fix = fmt.Sprintf("did you mean %s?", near)
			}
			found.broken = true
			d.refuse(node, &path{name: "kind"}, fmt.Sprintf("%s has no kind %q", apiGroup,
				h.kind), fix)
			return
		}
		d.report(condition.Warning, node.Line, nil,
			fmt.Sprintf("kind %s is not supported by this version of Outrider and has no effect",
				h.kind), "remove it or let an istiod serve it")
		return
	case h.name == "":
		d.refuse(node, &path{name: "metadata"}, "the object has no metadata.name", "")
		found.broken = true
		return
	// as in Istio, a policy without a spec has an empty spec
	case h.spec == nil && !kind.CanRestrictAccess():
		d.refuse(node, &path{name: "spec"}, "the object has no spec", "")
	}
	o := &object.Object{Key: object.Key{Kind: kind, Namespace: h.namespace, Name: h.name},
		NamespaceDefaulted: h.defaulted, APIVersion: h.apiVersion, Labels: h.labels,
		Annotations: h.annotations, Conditions: h.conditions, Created: h.created, File: r.file,
		Line: node.Line, Index: len(found.objects) + len(found.bad) + len(found.filters)}
	if h.spec == nil {
		found.bare = append(found.bare, o.Key)
	}
	if !d.failed {
		o.Spec = spec
	}
	if !d.failed && h.spec != nil {
		d.message(h.spec, o.Spec.ProtoReflect(), &path{name: "spec"}, depth+1)
	}
	if d.failed {
		r.refused(h, found)
		return
	}
	if routes, ok := o.Spec.(*networking.VirtualService); ok {
		for i := range routes.Http {
			o.RouteLines = append(o.RouteLines, locate(h.spec, fmt.Sprintf("http[%d]", i))-o.Line)
		}
	}
	// without a spec, findings are reported at the object's line
	v := &validated{object: o, spec: cmp.Or(h.spec, node)}
	if r.validate != nil {
		v.add(r.validate(o), len(d.problems))
	}
	d.problems, d.failed = append(d.problems, v.problems...), v.failed
	if kind == object.EnvoyFilter && !v.fatal {
		found.filters = append(found.filters, v)
		return
	}
	found.add(v)
}

func oneOf(alternatives []string) string {
	last := len(alternatives) - 1
	return strings.Join(alternatives[:last], ", ") + " or " + alternatives[last]
}

// unidentified records an invalid object that may have any key. The last good versions of all
// objects stay in force.
func (r *reader) unidentified(found *document) {
	found.broken, found.unidentified = true, true
}

// refused records an invalid object, whose last good version stays in force. If its kind or name is
// unknown, the whole document counts as broken.
func (r *reader) refused(h *header, found *document) {
	switch {
	case h.kind == "":
		r.unidentified(found)
		return
	case h.name == "":
		found.broken = true
		return
	}
	found.bad = append(found.bad, object.Key{Kind: object.Kind(h.kind), Namespace: h.namespace,
		Name: h.name})
}

// foreign reports whether an apiVersion belongs to another project, whose kinds may have the same
// names as Istio's: its domain is neither Istio's nor a possible misspelling of Istio's.
func foreign(apiVersion string) bool {
	g := group(apiVersion)
	return strings.Contains(g, ".") && g != "istio.io" && !strings.HasSuffix(g, ".istio.io") &&
		spelling.NearestWord(g, []string{apiGroup, securityGroup, telemetryGroup,
			extensionsGroup}) == ""
}

func group(apiVersion string) string {
	before, _, _ := strings.Cut(apiVersion, "/")
	return before
}
