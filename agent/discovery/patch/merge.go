package patch

import (
	"fmt"
	"strings"

	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/resource"
)

// merge merges the message src into dst, which has the same type. It overwrites scalars and merges
// messages. It replaces map entries, and messages whose JSON form is a single value (durations,
// wrapped numbers, packed messages). It extends lists, or replaces them if replaceLists is set.
func merge(dst, src protoreflect.Message, replaceLists bool) {
	src.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsList():
			into := dst.Mutable(field).List()
			if replaceLists {
				into.Truncate(0)
			}
			for i := range value.List().Len() {
				into.Append(copied(field, value.List().Get(i)))
			}
		case field.IsMap():
			into := dst.Mutable(field).Map()
			value.Map().Range(func(key protoreflect.MapKey, element protoreflect.Value) bool {
				into.Set(key, copied(field.MapValue(), element))
				return true
			})
		case field.Message() == nil, field.Message().FullName().Parent() == "google.protobuf" &&
			field.Message().Name() != "Struct":
			dst.Set(field, copied(field, value))
		default:
			merge(dst.Mutable(field).Message(), value.Message(), replaceLists)
		}
		return true
	})
}

// copied returns a deep copy of a field's value.
func copied(field protoreflect.FieldDescriptor, value protoreflect.Value) protoreflect.Value {
	switch {
	case field.Message() != nil:
		return protoreflect.ValueOfMessage(proto.Clone(value.Message().Interface()).ProtoReflect())
	case field.Kind() == protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(append([]byte{}, value.Bytes()...))
	}
	return value
}

// mergeAny merges two packed messages of the same type.
func mergeAny(dst, src *anypb.Any, replaceLists bool) (*anypb.Any, error) {
	into, err := dst.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("%s cannot be merged: %w", dst.TypeUrl, err)
	}
	from, err := src.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("%s cannot be merged: %w", src.TypeUrl, err)
	}
	if have, want := contentType(into, dst), contentType(from, src); have != want {
		return nil, fmt.Errorf("a %s cannot be merged into a %s", want, have)
	}
	if structure, ok := into.(*xdstypev3.TypedStruct); ok {
		if structure.Value == nil {
			structure.Value = &structpb.Struct{}
		}
		mergeStruct(structure.Value, from.(*xdstypev3.TypedStruct).Value, replaceLists)
	} else {
		merge(into.ProtoReflect(), from.ProtoReflect(), replaceLists)
	}
	return pack(into)
}

func contentType(message proto.Message, packed *anypb.Any) string {
	if structure, ok := message.(*xdstypev3.TypedStruct); ok {
		return typeName(structure.TypeUrl)
	}
	return typeName(packed.TypeUrl)
}

// pack validates and packs a message.
func pack(message proto.Message) (*anypb.Any, error) {
	if v, ok := message.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return nil, err
		}
	}
	value, err := resource.Encode(message)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: resource.TypePrefix + string(message.ProtoReflect().Descriptor().FullName()),
		Value: value}, nil
}

// mergeStruct merges JSON objects of unknown type by the rules of merge. It treats keys such as
// max_age and maxAge as equal.
func mergeStruct(dst, src *structpb.Struct, replaceLists bool) {
	if dst.Fields == nil {
		dst.Fields = map[string]*structpb.Value{}
	}
	for name, value := range src.GetFields() {
		known := name
		if dst.Fields[name] == nil {
			for other := range dst.Fields {
				if camel(other) == camel(name) {
					known = other
				}
			}
		}
		have := dst.Fields[known]
		switch {
		case have.GetStructValue() != nil && value.GetStructValue() != nil:
			mergeStruct(have.GetStructValue(), value.GetStructValue(), replaceLists)
		case have.GetListValue() != nil && value.GetListValue() != nil && !replaceLists:
			for _, element := range value.GetListValue().Values {
				have.GetListValue().Values = append(have.GetListValue().Values,
					proto.Clone(element).(*structpb.Value))
			}
		default:
			dst.Fields[known] = proto.Clone(value).(*structpb.Value)
		}
	}
}

// camel converts a field name such as max_age to its JSON form, maxAge.
func camel(name string) string {
	head, rest, more := strings.Cut(name, "_")
	for more {
		var part string
		part, rest, more = strings.Cut(rest, "_")
		if part != "" {
			head += strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return head
}
