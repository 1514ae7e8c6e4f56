package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	networking "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

const apiGroup = "networking.istio.io"

// specs makes the spec of each kind that is carried out.
var specs = map[object.Kind]func() proto.Message{
	object.ServiceEntry:    func() proto.Message { return &networking.ServiceEntry{} },
	object.VirtualService:  func() proto.Message { return &networking.VirtualService{} },
	object.DestinationRule: func() proto.Message { return &networking.DestinationRule{} },
	object.Gateway:         func() proto.Message { return &networking.Gateway{} },
	object.WorkloadEntry:   func() proto.Message { return &networking.WorkloadEntry{} },
	object.WorkloadGroup:   func() proto.Message { return &networking.WorkloadGroup{} },
	object.EnvoyFilter:     func() proto.Message { return &networking.EnvoyFilter{} },
	object.Sidecar:         func() proto.Message { return &networking.Sidecar{} },
}

// NewSpec makes an empty spec of a kind; nil if the kind is not carried out.
func NewSpec(kind object.Kind) proto.Message {
	if makeSpec := specs[kind]; makeSpec != nil {
		return makeSpec()
	}
	return nil
}

// kinds are all of the group, for the nearest name.
var kinds = []string{string(object.ServiceEntry), string(object.VirtualService), string(object.DestinationRule), string(object.Gateway),
	string(object.Sidecar), string(object.EnvoyFilter), string(object.WorkloadEntry), string(object.WorkloadGroup), string(object.ProxyConfig)}

// document is what one YAML document of a file holds.
type document struct {
	objects  []*object.Object
	bad      []object.Key // named, but refused: their last good version stays
	problems []object.Problem
	broken   bool // something could not even be named
}

// reader reads the documents of one file.
type reader struct {
	file      string
	namespace string
	validate  func(*object.Object) []object.Finding
}

// read parses one document that begins at the given line.
func (r *reader) read(content []byte, first int) (found document) {
	parser := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var root yaml.Node
		err := parser.Decode(&root)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			line, message := yamlError(err)
			found.broken = true
			found.problems = append(found.problems, object.Problem{File: r.file, Line: first + max(line, 1) - 1,
				Severity: condition.Error, Message: "no valid YAML: " + message})
			return found
		}
		shift(&root, first-1)
		if len(root.Content) == 1 {
			d := &decoder{}
			r.object(d, root.Content[0], &found, 0)
		}
	}
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// yamlError takes the line, from 1 (0 if unknown), out of a parser's error.
func yamlError(err error) (int, string) {
	match := yamlLine.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if match == nil {
		return 0, err.Error()
	}
	line, _ := strconv.Atoi(match[1])
	return line, match[2]
}

// shift moves the line numbers of a tree. Aliases point into the same tree and are not followed.
func shift(node *yaml.Node, by int) {
	if by == 0 {
		return
	}
	node.Line += by
	for _, child := range node.Content {
		shift(child, by)
	}
}

// header is what every object begins with.
type header struct {
	apiVersion, kind, name, namespace string
	defaulted                         bool // namespace is the default
	created                           time.Time
	labels, annotations               map[string]string
	spec, items                       *yaml.Node
	conditions                        map[string]string
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
	d.place = func(line int, field string) object.Problem {
		return object.Problem{File: r.file, Line: line, Object: object1(current), Field: field}
	}
	defer func() { found.problems = append(found.problems, d.problems...); d.problems = nil }()

	node, ok := d.visit(node, nil, depth)
	switch {
	case !ok:
		found.broken = true
		return
	case isNull(node):
		return
	case node.Kind != yaml.MappingNode:
		found.broken = true
		d.refuse(node, nil, "an object must be a mapping, this is "+describe(node), "begin it with apiVersion, kind, metadata and spec")
		return
	}
	h := r.header(d, node, depth)
	current = h
	switch {
	case d.failed:
		r.refused(h, found)
	case h.kind == "":
		found.broken = true
		d.refuse(node, &path{name: "kind"}, "the object has no kind", "")
	case h.kind == "List" || h.items != nil && strings.HasSuffix(h.kind, "List"):
		if h.items != nil {
			problems := d.problems
			for _, item := range h.items.Content {
				r.object(d, item, found, depth+1)
			}
			d.problems = problems
		}
	case group(h.apiVersion) != apiGroup:
		if near := nearest(h.kind, kinds[:4]); near == h.kind {
			found.broken = true
			d.refuse(node, &path{name: "apiVersion"}, fmt.Sprintf("%q is not an API of %s", h.apiVersion, h.kind), "write networking.istio.io/v1")
			return
		}
		d.tell(condition.Info, node.Line, nil, fmt.Sprintf("kind %s of %q is not of networking.istio.io and is left alone", h.kind, h.apiVersion), "")
	default:
		r.networking(d, node, h, found, depth)
	}
}

// networking reads an object of Istio's group.
func (r *reader) networking(d *decoder, node *yaml.Node, h *header, found *document, depth int) {
	version := strings.TrimPrefix(h.apiVersion, apiGroup+"/")
	kind := object.Kind(h.kind)
	makeSpec := specs[kind]
	switch {
	case version != "v1" && version != "v1beta1" && version != "v1alpha3":
		d.refuse(node, &path{name: "apiVersion"}, fmt.Sprintf("unknown version %q of networking.istio.io", version), "write v1, v1beta1 or v1alpha3")
	case makeSpec == nil:
		if near := nearest(h.kind, kinds); near != h.kind {
			cure := ""
			if near != "" {
				cure = fmt.Sprintf("did you mean %s?", near)
			}
			found.broken = true
			d.refuse(node, &path{name: "kind"}, fmt.Sprintf("networking.istio.io has no kind %q", h.kind), cure)
			return
		}
		d.tell(condition.Warning, node.Line, nil, fmt.Sprintf("kind %s is not carried out by this version of Outrider", h.kind), "the object has no effect; remove it or let an istiod serve it")
		return
	case h.name == "":
		d.refuse(node, &path{name: "metadata"}, "the object has no metadata.name", "")
		found.broken = true
		return
	case h.spec == nil:
		d.refuse(node, &path{name: "spec"}, "the object has no spec", "")
	}
	o := &object.Object{Key: object.Key{Kind: kind, Namespace: h.namespace, Name: h.name}, Defaulted: h.defaulted, APIVersion: h.apiVersion, Labels: h.labels,
		Annotations: h.annotations, Conditions: h.conditions, Created: h.created, File: r.file, Line: node.Line, Index: len(found.objects) + len(found.bad)}
	if !d.failed {
		o.Spec = makeSpec()
		d.message(h.spec, o.Spec.ProtoReflect(), &path{name: "spec"}, depth+1)
	}
	if !d.failed && r.validate != nil {
		for _, finding := range r.validate(o) {
			problem := o.Problem(finding)
			problem.Line = locate(h.spec, finding.Field)
			d.failed = d.failed || problem.Severity == condition.Error
			if len(d.problems) < maxProblems || problem.Severity == condition.Error && len(d.problems) < 2*maxProblems {
				d.problems = append(d.problems, problem)
			}
		}
	}
	if d.failed {
		r.refused(h, found)
		return
	}
	found.objects = append(found.objects, o)
}

// refused notes which object could not be taken.
func (r *reader) refused(h *header, found *document) {
	if h.kind == "" || h.name == "" {
		found.broken = true
		return
	}
	found.bad = append(found.bad, object.Key{Kind: object.Kind(h.kind), Namespace: h.namespace, Name: h.name})
}

func group(apiVersion string) string {
	before, _, _ := strings.Cut(apiVersion, "/")
	return before
}

// header reads what is around the spec. Other keys of metadata (uid, managedFields, …) are a cluster's and left alone.
func (r *reader) header(d *decoder, node *yaml.Node, depth int) *header {
	h := &header{namespace: r.namespace, defaulted: true}
	d.pairs(node, nil, func(key, value *yaml.Node) {
		at := &path{name: key.Value}
		value, ok := d.visit(value, at, depth)
		if !ok {
			return
		}
		switch key.Value {
		case "apiVersion":
			h.apiVersion = d.text(value, at)
		case "kind":
			h.kind = d.text(value, at)
		case "metadata":
			if value.Kind != yaml.MappingNode {
				d.refuse(value, at, "must be a mapping, is "+describe(value), "")
				return
			}
			d.pairs(value, at, func(key, value *yaml.Node) { r.metadata(d, h, key, value, at, depth) })
		case "spec":
			if !isNull(value) {
				h.spec = value
			}
		case "items":
			if value.Kind == yaml.SequenceNode {
				h.items = value
			}
		case "status":
			h.conditions = conditions(value)
		default:
			if group(h.apiVersion) == apiGroup {
				d.tell(condition.Warning, key.Line, at, fmt.Sprintf("unknown key %q beside spec", key.Value), "move it into spec or remove it")
			}
		}
	})
	return h
}

func (r *reader) metadata(d *decoder, h *header, key, value *yaml.Node, at *path, depth int) {
	at = &path{parent: at, name: key.Value}
	value, ok := d.visit(value, at, depth)
	if !ok || isNull(value) {
		return
	}
	switch key.Value {
	case "name":
		h.name = d.text(value, at)
	case "namespace":
		if namespace := d.text(value, at); namespace != "" {
			h.namespace, h.defaulted = namespace, false
		}
	case "labels":
		h.labels = d.texts(value, at, depth)
	case "annotations":
		h.annotations = d.texts(value, at, depth)
	case "creationTimestamp":
		created, err := time.Parse(time.RFC3339, value.Value)
		if err != nil {
			d.refuse(value, at, fmt.Sprintf("%q is no time", value.Value), "write it as 2006-01-02T15:04:05Z")
			return
		}
		h.created = created
	}
}

// text reads a single text value; "" if it is none, which is told.
func (d *decoder) text(node *yaml.Node, at *path) string {
	if node.Kind == yaml.ScalarNode {
		if s := resolve(node); s.kind == stringScalar {
			return s.text
		}
		d.refuse(node, at, fmt.Sprintf("must be text, is %s (%s)", describe(node), node.Value), fmt.Sprintf("put it in quotes: %q", node.Value))
		return ""
	}
	d.refuse(node, at, "must be text, is "+describe(node), "")
	return ""
}

func (d *decoder) texts(node *yaml.Node, at *path, depth int) map[string]string {
	if node.Kind != yaml.MappingNode {
		d.refuse(node, at, "must be a mapping, is "+describe(node), "")
		return nil
	}
	texts := make(map[string]string, len(node.Content)/2)
	d.pairs(node, at, func(key, value *yaml.Node) {
		here := &path{parent: at, name: key.Value, key: true}
		if value, ok := d.visit(value, here, depth); ok && !isNull(value) {
			texts[key.Value] = d.text(value, here)
		}
	})
	return texts
}
