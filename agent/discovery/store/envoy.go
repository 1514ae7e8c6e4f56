package store

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

const wellKnownPackage = "google.protobuf"

// Envoy decodes a JSON value, as EnvoyFilters have it, into a message of Envoy's. Go's durations
// are valid. As in Istio, fields that the message does not have are dropped; each causes a warning.
// at is the path of the value. After an error the message must not be used.
func Envoy(value any, into proto.Message, at string) []object.Finding {
	d := &decoder{protobuf: true, envoy: true, place: func(_ int, field string) object.Problem {
		return object.Problem{Field: field}
	}}
	d.message(nodeOf(value), into.ProtoReflect(), &path{name: at}, 0)
	var findings []object.Finding
	for _, p := range d.problems {
		findings = append(findings, object.Finding{Field: p.Field, Severity: p.Severity,
			Message: p.Message, Cure: p.Cure})
	}
	return findings
}

// nodeOf returns a JSON value as a YAML node.
func nodeOf(value any) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode}
	switch v := value.(type) {
	case nil:
		node.Value = "null"
	case bool:
		node.Value = strconv.FormatBool(v)
	case float64:
		node.Value = strconv.FormatFloat(v, 'f', -1, 64)
	case string:
		node.Value, node.Style = v, yaml.DoubleQuotedStyle
	case []any:
		node.Kind = yaml.SequenceNode
		for _, element := range v {
			node.Content = append(node.Content, nodeOf(element))
		}
	case map[string]any:
		node.Kind = yaml.MappingNode
		for _, key := range slices.Sorted(maps.Keys(v)) {
			node.Content = append(node.Content, nodeOf(key), nodeOf(v[key]))
		}
	}
	return node
}

// wellKnownEnvoy decodes messages of google.protobuf that wellKnown does not.
func (d *decoder) wellKnownEnvoy(node *yaml.Node, m protoreflect.Message, at *path,
	depth int) bool {
	name := m.Descriptor().FullName()
	if name.Parent() != wellKnownPackage {
		return false
	}
	if packed, ok := m.Interface().(*anypb.Any); ok && d.packed(node, packed, at, depth) {
		return true
	}
	text, err := protojson.Marshal(d.anything(node, at, depth))
	if err == nil {
		err = protojson.Unmarshal(text, m.Interface())
	}
	if err != nil {
		_, reason, _ := strings.Cut(err.Error(), "): ") // after the position in text
		d.refuse(node, at, fmt.Sprintf("is no %s: %s", name, reason),
			"write the JSON form of this type that protobuf's documentation has")
	}
	return true
}

// packed decodes a message with @type and packs it; false if its type has a JSON form of its own.
func (d *decoder) packed(node *yaml.Node, into *anypb.Any, at *path, depth int) bool {
	typeURL := member(node, "@type").Value
	linked, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	switch {
	case typeURL == "":
		d.refuse(node, at, "has no @type", "write type.googleapis.com/ and the name of a message")
		return true
	case err != nil || linked.Descriptor().FullName().Parent() == wellKnownPackage:
		return false
	}
	fields := &yaml.Node{Kind: yaml.MappingNode}
	for pair := range slices.Chunk(node.Content, 2) {
		if pair[0].Value != "@type" {
			fields.Content = append(fields.Content, pair...)
		}
	}
	inner := linked.New()
	d.message(fields, inner, at, depth+1)
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(inner.Interface())
	if err != nil {
		d.refuse(node, at, err.Error(), "")
	}
	into.TypeUrl, into.Value = typeURL, value
	return true
}

// warnWithoutConfig warns of an extension without configuration.
func (d *decoder) warnWithoutConfig(node *yaml.Node, m protoreflect.Message, at *path) {
	field := m.Descriptor().Fields().ByName("typed_config")
	if field == nil || m.Has(field) ||
		field.ContainingOneof() != nil && m.WhichOneof(field.ContainingOneof()) != nil {
		return
	}
	d.tell(condition.Warning, node.Line, at, "has no typed_config",
		"write one: Envoy knows no extension by its name alone")
}
