package resource

import (
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/protobuf/proto"
)

// Encode marshals a message deterministically, because versions are hashes of the bytes. Package
// proto refuses invalid UTF-8, which Envoy's generated marshalers accept. Mesh YAML never contains
// it.
//
// Envoy's types have generated marshalers (build tag vtprotobuf), which need no reflection tables,
// but write maps in random order. Messages in which a map has several keys are therefore marshaled
// by package proto.
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

// ordered reports whether every map in a generated message has at most one key.
func ordered(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface: // a message, or the value of a oneof
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
	default: // a scalar value of a map
	}
	return true
}

// known caches the results of composites: []int by reflect.Type.
var known sync.Map

// composites returns the indices of the fields that are maps or may contain maps.
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
		// A pointer to a number would be an optional field of proto2, which Envoy's API does not
		// use.
		if field.IsExported() && (kind == reflect.Pointer || kind == reflect.Interface ||
			kind == reflect.Map) {
			fields = append(fields, i)
		}
	}
	known.Store(message, fields)
	return fields
}
