package store

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

const wellKnownPackage = "google.protobuf"

// UnlinkedMessage is a packed message (Any) whose type is not linked into this program.
type UnlinkedMessage struct {
	Field string // path of the message in the object
	Type  string // name of the message's type
	Value *structpb.Struct
}

// DecodeEnvoyMessage decodes a JSON value of an EnvoyFilter, at the path field, into a message of
// Envoy's API. It accepts durations in Go's syntax. A packed message of an unlinked type becomes a
// TypedStruct, which Envoy decodes; a TypedStruct of a linked type is decoded as that type. Unknown
// fields are left out. After any other error the message must not be used.
func DecodeEnvoyMessage(value any, into proto.Message, field string) ([]object.Finding,
	[]UnlinkedMessage) {
	return decodeEnvoyWith(&decoder{}, value, into, field)
}

// DecodeEnvoyMessageStrict is like DecodeEnvoyMessage, but accepts only durations in protobuf's
// JSON form, as Envoy itself does.
func DecodeEnvoyMessageStrict(value any, into proto.Message, field string) ([]object.Finding,
	[]UnlinkedMessage) {
	return decodeEnvoyWith(&decoder{seconds: true}, value, into, field)
}

func decodeEnvoyWith(d *decoder, value any, into proto.Message, field string) ([]object.Finding,
	[]UnlinkedMessage) {
	d.protobuf, d.envoy = true, true
	d.problemAt = func(_ int, at string) object.Problem { return object.Problem{Field: at} }
	var root *path
	if field != "" {
		root = &path{name: field}
	}
	d.message(nodeOf(value), into.ProtoReflect(), root, 0)
	findings := make([]object.Finding, len(d.problems))
	for i, p := range d.problems {
		findings[i] = object.Finding{Field: p.Field, Severity: p.Severity, Message: p.Message,
			Fix: p.Fix, UnknownField: d.unknowns[i]}
	}
	return findings, d.unlinked
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

// wellKnownEnvoy decodes messages of google.protobuf, other than those of wellKnown, that have a
// JSON form of their own.
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
		// the reason follows the position in the text
		_, reason, _ := strings.Cut(err.Error(), "): ")
		d.refuse(node, at, fmt.Sprintf("is no %s: %s", name, reason),
			"write the JSON form of this type that protobuf's documentation has")
	}
	return true
}

const (
	typedStruct = "xds.type.v3.TypedStruct"
	oldStruct   = "udpa.type.v1.TypedStruct"
)

// oldType matches names of types in Envoy's API before version 3.
var oldType = regexp.MustCompile(`^envoy\.(api\.v2\.|.*\.v[12](alpha\d*|beta\d*)?\.[^.]+$)`)

// packed decodes a message with @type and packs it. It returns false if the type has a JSON form of
// its own.
func (d *decoder) packed(node *yaml.Node, into *anypb.Any, at *path, depth int) bool {
	fields, url := withoutType(node)
	name := typeName(url)
	switch {
	case at.name == "config" && node.Kind == yaml.MappingNode && len(node.Content) == 0:
		// a FilterConfig that only disables a filter, as in Envoy's documentation, has no config
		return true
	case member(node, "@type").Kind == 0:
		d.refuse(node, at, "has no @type", "write type.googleapis.com/ and the name of a message")
		return true
	case name == "":
		d.refuse(node, at, fmt.Sprintf("@type %s is no type", url),
			"write type.googleapis.com/ and the name of a message")
		return true
	case name == typedStruct || name == oldStruct:
		var ok bool
		if fields, url, ok = d.typedStruct(fields, at, depth); !ok {
			return true
		}
		name = typeName(url)
		at = &path{parent: at, name: "value"}
	}
	if oldType.MatchString(name) {
		d.refuse(node, at, fmt.Sprintf("@type %s is of a version of Envoy's API that is gone", url),
			"write its type of version 3")
		return true
	}
	linked, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	switch {
	case err != nil:
		value := &structpb.Struct{}
		d.structure(fields, value, at, depth)
		d.unlinked = append(d.unlinked, UnlinkedMessage{Field: at.String(), Type: name, Value: value})
		d.pack(node, into, &xdstypev3.TypedStruct{TypeUrl: resource.TypePrefix + name, Value: value}, at)
	case linked.Descriptor().FullName().Parent() == wellKnownPackage:
		return false
	default:
		d.warnDeprecated(node, linked.Descriptor(), at)
		inner := linked.New()
		d.message(fields, inner, at, depth+1)
		d.pack(node, into, inner.Interface(), at)
	}
	return true
}

func (d *decoder) pack(node *yaml.Node, into *anypb.Any, message proto.Message, at *path) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		d.refuse(node, at, err.Error(), "")
	}
	into.TypeUrl, into.Value = resource.TypePrefix+string(message.ProtoReflect().Descriptor().FullName()),
		value
}

// typedStruct returns the value of a TypedStruct, and the type URL of that value.
func (d *decoder) typedStruct(node *yaml.Node, at *path, depth int) (value *yaml.Node, url string,
	ok bool) {
	written := &xdstypev3.TypedStruct{}
	d.message(node, written.ProtoReflect(), at, depth+1)
	if typeName(written.TypeUrl) == "" {
		d.refuse(node, at, "a TypedStruct without type_url",
			"write the type that its value is of")
		return nil, "", false
	}
	value = member(node, "value")
	if value.Kind != yaml.MappingNode { // the value is missing, or was reported
		value = &yaml.Node{Kind: yaml.MappingNode, Line: node.Line}
	}
	return value, written.TypeUrl, true
}

// withoutType returns a mapping without its key @type, and the value of that key.
func withoutType(node *yaml.Node) (fields *yaml.Node, url string) {
	fields = &yaml.Node{Kind: yaml.MappingNode, Line: node.Line}
	for pair := range slices.Chunk(node.Content, 2) {
		if pair[0].Value == "@type" {
			url = pair[1].Value
		} else {
			fields.Content = append(fields.Content, pair...)
		}
	}
	return fields, url
}

// typeName returns the name of the message in a type URL, or "".
func typeName(url string) string {
	at := strings.LastIndexByte(url, '/')
	name := url[at+1:]
	if at < 0 || !protoreflect.FullName(name).IsValid() || !strings.Contains(name, ".") {
		return ""
	}
	return name
}

// warnWithoutConfig warns of an extension that has no configuration.
func (d *decoder) warnWithoutConfig(node *yaml.Node, m protoreflect.Message, at *path) {
	field := m.Descriptor().Fields().ByName("typed_config")
	if field == nil || m.Has(field) ||
		field.ContainingOneof() != nil && m.WhichOneof(field.ContainingOneof()) != nil {
		return
	}
	d.report(condition.Warning, node.Line, at, "has no typed_config",
		"write one: Envoy knows no extension by its name alone")
}
