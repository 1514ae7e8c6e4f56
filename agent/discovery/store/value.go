package store

import (
	"encoding/base64"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"outrider.org/outrider/agent/spelling"
)

// wellKnown decodes messages with a special JSON form.
func (d *decoder) wellKnown(node *yaml.Node, m protoreflect.Message, at *path) bool {
	fields := m.Descriptor().Fields()
	switch m.Descriptor().FullName() {
	case "google.protobuf.Duration":
		if node.Kind != yaml.ScalarNode || resolve(node).kind != stringScalar {
			d.refuse(node, at, "must be a duration, is "+describe(node),
				"write it with a unit, for example 5s")
			return true
		}
		duration, err := time.ParseDuration(node.Value)
		if err != nil {
			d.refuse(node, at, fmt.Sprintf("%q is no duration", node.Value),
				"write it with a unit, for example 5s or 250ms")
			return true
		}
		if d.seconds && !jsonDuration.MatchString(node.Value) {
			d.refuse(node, at, fmt.Sprintf("%q is no duration for Envoy", node.Value),
				"write seconds: "+strconv.FormatFloat(duration.Seconds(), 'f', -1, 64)+"s")
			return true
		}
		m.Set(fields.ByName("seconds"), protoreflect.ValueOfInt64(int64(duration/time.Second)))
		m.Set(fields.ByName("nanos"), protoreflect.ValueOfInt32(int32(duration%time.Second)))
	case "google.protobuf.BoolValue", "google.protobuf.UInt32Value", "google.protobuf.DoubleValue",
		"google.protobuf.StringValue", "google.protobuf.Int32Value", "google.protobuf.UInt64Value",
		"google.protobuf.Int64Value":
		field := fields.ByName("value")
		if v, ok := d.scalar(node, field, at); ok {
			m.Set(field, v)
		}
	default:
		return false
	}
	return true
}

// jsonDuration matches durations in protobuf's JSON.
var jsonDuration = regexp.MustCompile(`^-?\d+(\.\d{1,9})?s$`)

// jsonNumber matches quoted numbers in protobuf's JSON.
var jsonNumber = regexp.MustCompile(`^(-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|NaN|-?Infinity)$`)

func (d *decoder) scalar(node *yaml.Node, field protoreflect.FieldDescriptor,
	at *path) (protoreflect.Value, bool) {
	none := protoreflect.Value{}
	if node.Kind != yaml.ScalarNode {
		d.refuse(node, at, "must be a single value, is "+describe(node), "")
		return none, false
	}
	s := resolve(node)
	must := func(what, fix string) (protoreflect.Value, bool) {
		d.refuse(node, at, fmt.Sprintf("must be %s, is %s (%s)", what, s.kind, s.text), fix)
		return none, false
	}
	switch field.Kind() {
	case protoreflect.StringKind:
		if s.kind != stringScalar {
			return must("text", fmt.Sprintf("put it in quotes: %q", s.text))
		}
		return protoreflect.ValueOfString(s.text), true
	case protoreflect.BytesKind:
		if s.kind != stringScalar {
			return must("text in base64", "")
		}
		encoding := base64.StdEncoding
		if d.protobuf && strings.ContainsAny(s.text, "-_") {
			encoding = base64.URLEncoding
		}
		if d.protobuf && len(s.text)%4 != 0 {
			encoding = encoding.WithPadding(base64.NoPadding)
		}
		bytes, err := encoding.DecodeString(s.text)
		if err != nil {
			d.refuse(node, at, "is no base64: "+err.Error(), "")
			return none, false
		}
		return protoreflect.ValueOfBytes(bytes), true
	case protoreflect.BoolKind:
		if s.kind != boolScalar {
			return must("true or false", "")
		}
		return protoreflect.ValueOfBool(s.boolean), true
	case protoreflect.EnumKind:
		return d.enum(node, s, field, at)
	}
	if s.kind == stringScalar && (d.protobuf || d.wide && is64(field.Kind())) &&
		jsonNumber.MatchString(s.text) {
		s = resolve(&yaml.Node{Kind: yaml.ScalarNode, Line: node.Line,
			Value: strings.NewReplacer("Infinity", ".inf", "NaN", ".nan").Replace(s.text)})
	}
	if s.kind != intScalar && s.kind != floatScalar {
		return must("a number", "")
	}
	return d.number(node, s, field, at)
}

// is64 reports whether a kind of field has 64-bit integers.
func is64(kind protoreflect.Kind) bool {
	return kind == protoreflect.Uint64Kind || kind == protoreflect.Int64Kind
}

func (d *decoder) number(node *yaml.Node, s scalar, field protoreflect.FieldDescriptor,
	at *path) (protoreflect.Value, bool) {
	if s.kind == floatScalar && s.float == math.Trunc(s.float) && math.Abs(s.float) < 1<<53 {
		s.integer, s.unsigned = int64(s.float), uint64(max(s.float, 0))
	} else if s.kind == floatScalar && field.Kind() != protoreflect.DoubleKind &&
		field.Kind() != protoreflect.FloatKind {
		d.refuse(node, at, s.text+" is no whole number", "")
		return protoreflect.Value{}, false
	}
	outside := func() (protoreflect.Value, bool) {
		d.refuse(node, at, fmt.Sprintf("%s is out of range for %s", s.text, field.Kind()), "")
		return protoreflect.Value{}, false
	}
	switch field.Kind() {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		if s.integer < math.MinInt32 || s.integer > math.MaxInt32 {
			return outside()
		}
		return protoreflect.ValueOfInt32(int32(s.integer)), true
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		if s.float < 0 || s.unsigned > math.MaxUint32 {
			return outside()
		}
		return protoreflect.ValueOfUint32(uint32(s.unsigned)), true
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(s.integer), true
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		if s.float < 0 {
			return outside()
		}
		return protoreflect.ValueOfUint64(s.unsigned), true
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(s.float), true
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(s.float)), true
	}
	return outside()
}

// maxNames bounds how many values of an enum an error lists.
const maxNames = 12

func (d *decoder) enum(node *yaml.Node, s scalar, field protoreflect.FieldDescriptor,
	at *path) (protoreflect.Value, bool) {
	values := field.Enum().Values()
	switch s.kind {
	case stringScalar, boolScalar: // YAML 1.1 reads the names ON and NO as booleans
		if v := values.ByName(protoreflect.Name(s.text)); v != nil {
			if d.envoy {
				d.warnDeprecated(node, v, at)
			}
			return protoreflect.ValueOfEnum(v.Number()), true
		}
	case intScalar:
		if !d.protobuf {
			break
		}
		// the number has no name in this version of the API, but may have one in a later version
		number := protoreflect.EnumNumber(s.integer)
		if int64(number) == s.integer && (d.envoy || values.ByNumber(number) != nil) {
			return protoreflect.ValueOfEnum(number), true
		}
	}
	var names []string
	for i := range values.Len() {
		names = append(names, string(values.Get(i).Name()))
	}
	message := strconv.Quote(s.text) + " is not one of " + strings.Join(names, ", ")
	if !d.envoy || s.kind == intScalar || s.kind == floatScalar {
		d.refuse(node, at, message, "")
		return protoreflect.Value{}, false
	}
	fix := ""
	if near := spelling.NearestWord(s.text, names); near != "" {
		fix = fmt.Sprintf("did you mean %s?", near)
	}
	if len(names) > maxNames {
		message = fmt.Sprintf("%q is no value of %s", s.text, field.Enum().Name())
	}
	d.unknown(node.Line, at, message, fix)
	return protoreflect.Value{}, false
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && resolve(node).kind == nullScalar
}

func describe(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		return resolve(node).kind.String()
	}
	return "something else"
}
