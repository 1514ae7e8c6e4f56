package render

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"outrider.org/outrider/agent/spelling"
	"outrider.org/outrider/bootstrap"
)

// override merges a user's file (JSON or YAML) into a bootstrap by protobuf's rules, like Envoy's
// --config-yaml: a scalar is replaced, a message merged field by field, a list appended to, a map
// entry replaced, and a oneof member replaces the others. It works on documents, not on protobuf
// messages, so that unknown extensions and fields are retained; in unknown fields objects are
// merged, lists appended to, and other values replaced.
//
// Protobuf cannot distinguish an explicit false, 0 or "" from an absent one, so such a value never
// replaces another. Envoy ignores it silently; override returns an error, as for everything else
// that would have no effect. Errors are of type *Error.
func override(into *value, file string, content []byte) error {
	from, err := parse(file, content)
	if err != nil {
		return err
	}
	descriptor := (&bootstrapv3.Bootstrap{}).ProtoReflect().Descriptor()
	return merger{file: file}.message(into, from, descriptor, nil)
}

type merger struct{ file string }

func (m merger) fail(line int, path []string, format string, args ...any) error {
	return &bootstrap.Error{File: m.file, Line: line, Path: strings.Join(path, "."),
		Message: fmt.Sprintf(format, args...)}
}

// message merges the fields of an object. descriptor is nil if the message is unknown.
func (m merger) message(into, from *value, descriptor protoreflect.MessageDescriptor,
	path []string) error {
	for _, f := range from.fields {
		if f.value.isNull() { // in protobuf's JSON null means not set
			continue
		}
		path := append(slices.Clip(path), f.name)
		known := fieldNamed(descriptor, f.name)
		if known == nil && descriptor != nil {
			if near := nearest(descriptor, f.name); near != "" {
				return m.fail(f.line, path, "%s has no such field; did you mean %s?",
					descriptor.FullName(), near)
			}
		}
		names := []string{f.name}
		if known != nil {
			names = []string{known.TextName(), known.JSONName()}
			if oneof := known.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() {
				removeOthers(into, oneof, known)
			}
		}
		existing := into.find(names)
		if existing < 0 || into.fields[existing].value.isNull() {
			if existing >= 0 {
				into.fields = slices.Delete(into.fields, existing, existing+1)
			}
			into.fields = append(into.fields, f)
			continue
		}
		if err := m.field(&into.fields[existing], f, known, path); err != nil {
			return err
		}
	}
	return nil
}

// field merges a field that is in both documents.
func (m merger) field(into *field, from field, known protoreflect.FieldDescriptor,
	path []string) error {
	if known == nil {
		return m.unknown(into, from, path)
	}
	expect := func(kind kind) error {
		if from.value.kind != kind || into.value.kind != kind {
			return m.fail(from.line, path, "is %s where %s is %s", from.value.kind, known.Name(),
				kind)
		}
		return nil
	}
	message := known.Message()
	switch {
	case known.IsMap() || (message != nil && message.FullName() == "google.protobuf.Struct"):
		if err := expect(object); err != nil {
			return err
		}
		for _, entry := range from.value.fields {
			into.value.set(entry)
		}
		return nil
	case known.IsList() || (message != nil && message.FullName() == "google.protobuf.ListValue"):
		if err := expect(list); err != nil {
			return err
		}
		into.value.items = append(slices.Clip(into.value.items), from.value.items...)
		return nil
	case message == nil:
		if !known.HasPresence() && isDefault(from.value, known) && !isDefault(into.value, known) {
			return m.noEffect(from, into.value, path)
		}
		into.value = from.value
		return nil
	case isScalarMessage(message):
		return m.scalarMessage(into, from, message, path)
	case message.FullName() == "google.protobuf.Any" ||
		message.FullName() == "google.protobuf.Value":
		into.value = from.value
		return nil
	}
	if err := expect(object); err != nil {
		return err
	}
	return m.message(into.value, from.value, message, path)
}

func (m merger) unknown(into *field, from field, path []string) error {
	switch {
	case from.value.kind == object && into.value.kind == object && into.value.get("@type") == nil &&
		from.value.get("@type") == nil:
		return m.message(into.value, from.value, nil, path)
	case from.value.kind == list && into.value.kind == list:
		into.value.items = append(slices.Clip(into.value.items), from.value.items...)
	default:
		into.value = from.value
	}
	return nil
}

func (m merger) noEffect(from field, existing *value, path []string) error {
	return m.fail(from.line, path, "%s cannot replace %s: by protobuf's rules, which are "+
		"Envoy's, a default value replaces nothing; "+
		"set the key of outrider.toml that makes it, or use [envoy] custom_config_file",
		from.value.text, existing.text)
}

// scalarMessage merges messages that are a single value in JSON. Protobuf merges their inner
// fields, so those that are 0 have no effect.
func (m merger) scalarMessage(into *field, from field, message protoreflect.MessageDescriptor,
	path []string) error {
	switch message.FullName() {
	case "google.protobuf.Duration":
		oldSeconds, oldNanos := splitDuration(into.value.text)
		seconds, nanos := splitDuration(from.value.text)
		if (seconds == "" && oldSeconds != "") || (nanos == "" && oldNanos != "") {
			return m.noEffect(from, into.value, path)
		}
	case "google.protobuf.Timestamp", "google.protobuf.FieldMask": // a bootstrap has no such fields
	default: // a wrapper message such as UInt32Value
		inner := message.Fields().ByName("value")
		if isDefault(from.value, inner) && !isDefault(into.value, inner) {
			return m.noEffect(from, into.value, path)
		}
	}
	into.value = from.value
	return nil
}

// splitDuration returns the whole seconds and the fraction of "1.5s", each "" if it is 0.
func splitDuration(text string) (seconds, fraction string) {
	seconds, fraction, _ = strings.Cut(strings.TrimPrefix(strings.TrimSuffix(text, "s"), "-"), ".")
	return strings.TrimLeft(seconds, "0"), strings.TrimRight(fraction, "0")
}

func isScalarMessage(message protoreflect.MessageDescriptor) bool {
	if message.ParentFile().Package() != "google.protobuf" {
		return false
	}
	switch message.Name() {
	case "Duration", "Timestamp", "FieldMask":
		return true
	}
	return strings.HasSuffix(string(message.Name()), "Value") && message.Fields().Len() == 1 &&
		message.Name() != "ListValue"
}

// isDefault reports whether the value is the default of a field.
func isDefault(v *value, known protoreflect.FieldDescriptor) bool {
	switch known.Kind() {
	case protoreflect.BoolKind:
		return v.text == "false"
	case protoreflect.StringKind, protoreflect.BytesKind:
		return v.text == ""
	case protoreflect.EnumKind:
		if named := known.Enum().Values().ByName(protoreflect.Name(v.text)); named != nil {
			return named.Number() == 0
		}
		return v.text == "0"
	}
	number, err := strconv.ParseFloat(v.text, 64)
	return err == nil && number == 0
}

func fieldNamed(descriptor protoreflect.MessageDescriptor,
	name string) protoreflect.FieldDescriptor {
	if descriptor == nil {
		return nil
	}
	if known := descriptor.Fields().ByTextName(name); known != nil {
		return known
	}
	return descriptor.Fields().ByJSONName(name)
}

func removeOthers(from *value, oneof protoreflect.OneofDescriptor,
	keep protoreflect.FieldDescriptor) {
	from.fields = slices.DeleteFunc(from.fields, func(f field) bool {
		member := fieldNamed(oneof.Parent().(protoreflect.MessageDescriptor), f.name)
		return member != nil && member.Number() != keep.Number() &&
			member.ContainingOneof() == oneof
	})
}

// find returns the index of the first field with one of the names, or -1.
func (v *value) find(names []string) int {
	return slices.IndexFunc(v.fields, func(f field) bool { return slices.Contains(names, f.name) })
}

func (v *value) set(f field) {
	if i := v.find([]string{f.name}); i >= 0 {
		v.fields[i] = f
		return
	}
	v.fields = append(v.fields, f)
}

// nearest returns the field whose name differs by one or two letters, or "". A more different name
// may belong to a newer Envoy.
func nearest(descriptor protoreflect.MessageDescriptor, name string) string {
	var known []string
	for i := range descriptor.Fields().Len() {
		field := descriptor.Fields().Get(i)
		known = append(known, field.TextName(), field.JSONName())
	}
	return spelling.NearestWordWithin(name, known, 2)
}
