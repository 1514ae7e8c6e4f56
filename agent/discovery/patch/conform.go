package patch

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

const anyType = "google.protobuf.Any"

// conformer compares a value with Envoy's types and collects all errors with their paths. It
// returns the value in protobuf's JSON form: Go durations (500ms, 1m) are converted and, as in
// Istio, unknown fields dropped.
type conformer struct{ findings []object.Finding }

func (c *conformer) fail(path, message, cure string) any {
	c.findings = append(c.findings, object.Finding{Field: path, Severity: condition.Error,
		Message: message, Cure: cure})
	return nil
}

func (c *conformer) failed() bool {
	return slices.ContainsFunc(c.findings,
		func(f object.Finding) bool { return f.Severity == condition.Error })
}

func (c *conformer) message(value any, of protoreflect.MessageDescriptor, path string) any {
	name := of.FullName()
	switch {
	case name == "google.protobuf.Duration":
		return c.duration(value, path)
	case strings.HasSuffix(string(name), "Value") && name.Parent() == "google.protobuf" &&
		of.Fields().ByName("value") != nil:
		return c.scalar(value, of.Fields().ByName("value"), path)
	case name.Parent() == "google.protobuf" && name != anyType, name == typedStruct:
		return value
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return c.fail(path, "must be a mapping, is "+kindOf(value),
			"write the fields of "+string(of.Name()))
	}
	out := make(map[string]any, len(fields))
	if name == anyType {
		typeURL, _ := fields["@type"].(string)
		linked, err := protoregistry.GlobalTypes.FindMessageByName(
			protoreflect.FullName(typeName(typeURL)))
		switch {
		case typeURL == "":
			return c.fail(path, "has no @type",
				"write type.googleapis.com/ and the name of a message")
		case err != nil:
			return value
		}
		of, out["@type"] = linked.Descriptor(), typeURL
		if of.FullName() == typedStruct || of.FullName().Parent() == "google.protobuf" {
			return value
		}
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		here := path + "." + key
		field := of.Fields().ByJSONName(key)
		if field == nil {
			field = of.Fields().ByTextName(key)
		}
		switch {
		case key == "@type" && name == anyType:
		case field == nil:
			c.findings = append(c.findings, object.Finding{Field: here, Severity: condition.Warning,
				Message: fmt.Sprintf("%s has no field %q", of.Name(), key),
				Cure:    "correct or remove it: it has no effect"})
		default:
			out[key] = c.field(fields[key], field, here)
		}
	}
	if of.Fields().ByName("typed_config") != nil && first(out, "typed_config", "typedConfig",
		"config_discovery", "configDiscovery") == nil {
		c.findings = append(c.findings, object.Finding{Field: path, Severity: condition.Warning,
			Message: "has no typed_config",
			Cure:    "write one: Envoy knows no extension by its name alone"})
	}
	return out
}

func (c *conformer) field(value any, field protoreflect.FieldDescriptor, path string) any {
	if value == nil {
		return nil // like an absent field
	}
	switch {
	case field.IsMap():
		entries, ok := value.(map[string]any)
		if !ok {
			return c.fail(path, "must be a mapping, is "+kindOf(value), "")
		}
		out := make(map[string]any, len(entries))
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			out[key] = c.element(entries[key], field.MapValue(), fmt.Sprintf("%s[%q]", path, key))
		}
		return out
	case field.IsList():
		elements, ok := value.([]any)
		if !ok {
			return c.fail(path, "must be a list, is "+kindOf(value), "put - before it")
		}
		out := make([]any, len(elements))
		for i, element := range elements {
			out[i] = c.element(element, field, fmt.Sprintf("%s[%d]", path, i))
		}
		return out
	}
	return c.element(value, field, path)
}

func (c *conformer) element(value any, field protoreflect.FieldDescriptor, path string) any {
	switch {
	case value == nil && field.Message() == nil, value == nil &&
		field.Message().FullName().Parent() != "google.protobuf":
		return c.fail(path, "is null", "write a value or remove it")
	case field.Message() != nil:
		return c.message(value, field.Message(), path)
	}
	return c.scalar(value, field, path)
}

func (c *conformer) duration(value any, path string) any {
	text, ok := value.(string)
	if !ok {
		return c.fail(path, "must be a duration, is "+kindOf(value),
			"write it with a unit, for example 5s")
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		return c.fail(path, fmt.Sprintf("%q is no duration", text),
			"write it with a unit, for example 5s or 250ms")
	}
	return strconv.FormatFloat(duration.Seconds(), 'f', -1, 64) + "s"
}

func (c *conformer) scalar(value any, field protoreflect.FieldDescriptor, path string) any {
	text, isText := value.(string)
	number, isNumber := value.(float64)
	switch field.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind:
		if !isText {
			return c.fail(path, "must be text, is "+kindOf(value), "put it in quotes")
		}
	case protoreflect.BoolKind:
		if _, ok := value.(bool); !ok {
			return c.fail(path, "must be true or false, is "+kindOf(value), "")
		}
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		if isText && values.ByName(protoreflect.Name(text)) == nil {
			var names []string
			for i := range min(values.Len(), 12) {
				names = append(names, string(values.Get(i).Name()))
			}
			return c.fail(path, fmt.Sprintf("%q is no %s", text, field.Enum().Name()),
				"write one of "+strings.Join(names, ", "))
		}
		if !isText && (!isNumber || number != math.Trunc(number)) {
			return c.fail(path, "must be a name, is "+kindOf(value), "")
		}
	default:
		if isText { // protobuf's JSON accepts quoted numbers
			var err error
			number, err = strconv.ParseFloat(text, 64)
			isNumber = err == nil
		}
		if !isNumber {
			return c.fail(path, "must be a number, is "+kindOf(value), "")
		}
		return c.number(value, number, field.Kind(), path)
	}
	return value
}

func (c *conformer) number(value any, number float64, kind protoreflect.Kind, path string) any {
	low, high := math.Inf(-1), math.Inf(1)
	switch kind {
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return value
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		low, high = 0, math.MaxUint32
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		low, high = 0, math.MaxUint64
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		low, high = math.MinInt32, math.MaxInt32
	}
	if number != math.Trunc(number) || number < low || number > high {
		return c.fail(path, fmt.Sprintf("%v is no whole number in the range of %s", value, kind),
			"")
	}
	return value
}

func kindOf(value any) string {
	switch value := value.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("text (%.40s)", value)
	}
	return fmt.Sprintf("%v", value)
}
