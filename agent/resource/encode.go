package resource

import (
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/protobuf/proto"
)

// Encode is the wire form of a message. Equal messages have equal bytes, as versions are hashes of
// them. Text that is not UTF-8 is an error where protobuf writes it; Envoy's own encoders let it
// pass, and YAML does not bring it.
//
// Envoy's messages bring encoders of their own (build tag vtprotobuf), which need no tables made of
// descriptors: with 100 services that is 3 ms of a start and 1 MB. But they write a map in any
// order, so that a message with a map of several keys is left to protobuf.
func Encode(message proto.Message) ([]byte, error) {
	var encoded []byte
	var err error
	if own, ok := message.(interface{ MarshalVTStrict() ([]byte, error) }); ok &&
		ordered(reflect.ValueOf(message)) {
		encoded, err = own.MarshalVTStrict()
	} else {
		encoded, err = proto.MarshalOptions{Deterministic: true}.Marshal(message)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", message, err)
	}
	return encoded, nil
}

// ordered is whether no map in what is generated of a message has more than one key.
func ordered(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface: // a message, what a oneof holds
		return v.IsNil() || ordered(v.Elem())
	case reflect.Struct:
		for _, field := range composites(v.Type()) {
			if !ordered(v.Field(field)) {
				return false
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if !ordered(v.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		if v.Len() > 1 {
			return false
		}
		for entries := v.MapRange(); entries.Next(); {
			return ordered(entries.Value())
		}
	default: // a number or text, which a map may hold
	}
	return true
}

// known holds what composites found out: reflect.Type → []int.
var known sync.Map

// composites are the indices of a message's fields that may hold a map, or messages that do.
func composites(message reflect.Type) []int {
	if found, ok := known.Load(message); ok {
		return found.([]int)
	}
	var fields []int
	for i := range message.NumField() {
		field := message.Field(i)
		kind := field.Type.Kind()
		if kind == reflect.Slice {
			kind = field.Type.Elem().Kind()
		}
		// A pointer may be one to a number (an optional field of proto2, which Envoy's API does not
		// have): it costs a look.
		if field.IsExported() && (kind == reflect.Pointer || kind == reflect.Interface ||
			kind == reflect.Map) {
			fields = append(fields, i)
		}
	}
	known.Store(message, fields)
	return fields
}
