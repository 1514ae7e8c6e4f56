package store

import (
	"fmt"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/spelling"
)

const (
	maxDepth = 100 // levels of nesting; types of Istio have fewer than ten
	// YAML nodes in one document; an alias counts at each use
	maxNodes      = 500_000
	maxProblems   = 20 // problems that are reported for one object, in addition to the first error
	maxMergeDepth = 10 // levels of nested merge keys ("<<")
)

// decoder decodes the YAML nodes of one document into protobuf messages and collects all errors.
type decoder struct {
	nodes     int // number of YAML nodes visited so far
	problems  []object.Problem
	failed    bool // an error was found since the field was last cleared
	problemAt func(line int, field string) object.Problem
	tooMuch   bool // the problem that the document is too large was reported
	// accepts quoted numbers and numeric enum values, as protobuf's JSON does; an API server
	// refuses both
	protobuf bool
	// accepts 64-bit numbers as text, as other xDS servers send them in protobuf's JSON
	wide     bool
	envoy    bool // decodes messages of Envoy's API; see DecodeEnvoyMessage
	seconds  bool // accepts only durations in seconds; see DecodeEnvoyMessageStrict
	unlinked []UnlinkedMessage
	unknowns []bool // with envoy: whether each of problems is an UnknownField
	// someUnknown reports whether one of problems is an UnknownField.
	someUnknown bool
}

func (d *decoder) report(severity condition.Severity, line int, at *path, message, fix string) {
	first := severity == condition.Error && !d.failed
	d.failed = d.failed || first
	if len(d.problems) >= maxProblems && !first {
		return
	}
	d.add(severity, line, at, message, fix)
}

// unknown reports a field or value that the linked version of Envoy's API does not have.
func (d *decoder) unknown(line int, at *path, message, fix string) {
	if d.someUnknown && len(d.problems) >= maxProblems {
		return
	}
	d.someUnknown = true
	d.add(condition.Error, line, at, message, fix)
	d.unknowns[len(d.unknowns)-1] = true
}

func (d *decoder) add(severity condition.Severity, line int, at *path, message, fix string) {
	p := d.problemAt(line, at.String())
	p.Severity, p.Message, p.Fix = severity, message, fix
	d.problems = append(d.problems, p)
	if d.envoy {
		d.unknowns = append(d.unknowns, false)
	}
}

func (d *decoder) refuse(node *yaml.Node, at *path, message, fix string) {
	d.report(condition.Error, node.Line, at, message, fix)
}

// visit resolves an alias and counts the node. It returns false if the document is too large.
func (d *decoder) visit(node *yaml.Node, at *path, depth int) (*yaml.Node, bool) {
	node = resolveAlias(node)
	d.nodes++
	if d.nodes <= maxNodes && depth <= maxDepth && node.Kind != yaml.AliasNode {
		return node, true
	}
	if !d.tooMuch {
		d.tooMuch = true
		d.refuse(node, at, fmt.Sprintf("more than %d values or %d levels, aliases included",
			maxNodes, maxDepth), "make the document smaller")
	}
	return node, false
}

// pairs calls do for every key and value of a mapping, including those of merge keys ("<<").
// Explicit keys have precedence over merged ones.
func (d *decoder) pairs(node *yaml.Node, at *path, do func(key, value *yaml.Node)) {
	const fewKeys = 12
	var seen map[string]bool
	if len(node.Content) > 2*fewKeys {
		seen = make(map[string]bool, len(node.Content)/2)
	}
	merged := false
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := resolveAlias(node.Content[i])
		if key.Kind != yaml.ScalarNode {
			d.refuse(key, at, "a key that is not text", "")
			continue
		}
		if key.Value == "<<" && key.Style == 0 {
			merged = true
			continue
		}
		twice := seen[key.Value]
		if seen != nil {
			seen[key.Value] = true
		} else {
			for j := 0; j < i; j += 2 {
				twice = twice || node.Content[j].Value == key.Value &&
					node.Content[j].Kind == yaml.ScalarNode
			}
		}
		if twice {
			d.refuse(key, &path{parent: at, name: key.Value, key: key.Value == ""},
				"given twice in one place", "remove one")
			continue
		}
		do(key, node.Content[i+1])
	}
	if merged {
		d.merge(node, at, do, map[string]bool{}, 0)
	}
}

// merge calls do for merged keys that are not defined in a nearer mapping.
func (d *decoder) merge(node *yaml.Node, at *path, do func(key, value *yaml.Node),
	seen map[string]bool, depth int) {
	var sources []*yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := resolveAlias(node.Content[i])
		if key.Value != "<<" || key.Style != 0 {
			if !seen[key.Value] {
				seen[key.Value] = true
				if depth > 0 {
					do(key, node.Content[i+1])
				}
			}
			continue
		}
		value, ok := d.visit(node.Content[i+1], at, depth)
		if !ok || depth > maxMergeDepth {
			return
		}
		switch value.Kind {
		case yaml.MappingNode:
			sources = append(sources, value)
		case yaml.SequenceNode:
			for _, element := range value.Content {
				if element, ok = d.visit(element, at, depth); ok &&
					element.Kind == yaml.MappingNode {
					sources = append(sources, element)
				}
			}
		default:
			d.refuse(key, at, "<< takes a mapping or a list of mappings", "")
		}
	}
	for _, source := range sources {
		d.merge(source, at, do, seen, depth+1)
	}
}

// message decodes a mapping into m.
func (d *decoder) message(node *yaml.Node, m protoreflect.Message, at *path, depth int) {
	node, ok := d.visit(node, at, depth)
	if !ok || d.wellKnown(node, m, at) || d.envoy && d.wellKnownEnvoy(node, m, at, depth) {
		return
	}
	if into, ok := m.Interface().(*structpb.Struct); ok {
		d.structure(node, into, at, depth)
		return
	}
	if node.Kind != yaml.MappingNode {
		d.refuse(node, at, "must be a mapping, is "+describe(node), "")
		return
	}
	fields := m.Descriptor().Fields()
	d.pairs(node, at, func(key, value *yaml.Node) {
		field := fields.ByJSONName(key.Value)
		if field == nil {
			field = fields.ByTextName(key.Value)
		}
		if field == nil {
			d.unknownField(key, m.Descriptor(), at)
			return
		}
		child := path{parent: at, name: field.JSONName()}
		if d.envoy {
			child.name = key.Value
		}
		if value, ok := d.visit(value, &child, depth); ok && !isNull(value) {
			if oneof := field.ContainingOneof(); oneof != nil {
				if other := m.WhichOneof(oneof); other != nil && other != field {
					d.refuse(key, &child, fmt.Sprintf("excludes %s, and both are given",
						other.JSONName()), "keep one")
					return
				}
			}
			if d.envoy && m.Has(field) {
				d.refuse(key, &child, "given by both of its names", "keep one")
				return
			}
			if d.envoy {
				d.warnDeprecated(key, field, &child)
			}
			d.field(value, m, field, &child, depth+1)
		}
	})
	if d.envoy {
		d.warnWithoutConfig(node, m, at)
	}
}

func (d *decoder) unknownField(key *yaml.Node, of protoreflect.MessageDescriptor, at *path) {
	child := &path{parent: at, name: key.Value, key: key.Value == ""}
	var known []string
	for i := range of.Fields().Len() {
		if d.envoy { // Envoy's documentation writes the names with underscores
			known = append(known, of.Fields().Get(i).TextName())
		} else {
			known = append(known, of.Fields().Get(i).JSONName())
		}
	}
	fix := "remove it"
	if near := spelling.NearestWord(key.Value, known); near != "" {
		fix = fmt.Sprintf("did you mean %s?", near)
	}
	if d.envoy {
		d.unknown(key.Line, child, fmt.Sprintf("%s has no field %q", of.Name(), key.Value), fix)
		return
	}
	d.refuse(key, child, fmt.Sprintf("unknown field %q", key.Value), fix)
}

func (d *decoder) field(node *yaml.Node, m protoreflect.Message, field protoreflect.FieldDescriptor,
	at *path, depth int) {
	switch {
	case field.IsMap():
		if node.Kind != yaml.MappingNode {
			d.refuse(node, at, "must be a mapping, is "+describe(node), "")
			return
		}
		entries := m.Mutable(field).Map()
		d.pairs(node, at, func(key, value *yaml.Node) {
			child := path{parent: at, name: key.Value, key: true}
			value, ok := d.visit(value, &child, depth)
			if !ok {
				return
			}
			name, ok := protoreflect.ValueOfString(key.Value), true
			if field.MapKey().Kind() != protoreflect.StringKind {
				// a key in JSON is text, even if it is a number
				name, ok = d.scalar(&yaml.Node{Kind: yaml.ScalarNode, Value: key.Value,
					Line: key.Line, Column: key.Column}, field.MapKey(), &child)
			}
			switch {
			case !ok:
			case field.MapValue().Message() != nil:
				element := entries.NewValue()
				if d.envoy || !isNull(value) {
					d.message(value, element.Message(), &child, depth+1)
				}
				entries.Set(name.MapKey(), element)
			default:
				if v, ok := d.scalar(value, field.MapValue(), &child); ok {
					entries.Set(name.MapKey(), v)
				}
			}
		})
	case field.IsList():
		if node.Kind != yaml.SequenceNode {
			d.refuse(node, at, "must be a list, is "+describe(node), "put - before it")
			return
		}
		list := m.Mutable(field).List()
		for i, element := range node.Content {
			child := path{parent: at, index: i}
			if field.Message() != nil {
				value := list.NewElement()
				d.message(element, value.Message(), &child, depth+1)
				list.Append(value)
			} else if element, ok := d.visit(element, &child, depth); ok {
				if v, ok := d.scalar(element, field, &child); ok {
					list.Append(v)
				}
			}
		}
	case field.Message() != nil:
		d.message(node, m.Mutable(field).Message(), at, depth+1)
	default:
		if v, ok := d.scalar(node, field, at); ok {
			m.Set(field, v)
		}
	}
}
