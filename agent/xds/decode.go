package xds

import (
	"errors"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// deltaRequest receives a DeltaDiscoveryRequest. A client that continues an earlier stream sends
// the versions of thousands of resources. Package proto would need several allocations for each.
type deltaRequest struct {
	discoveryv3.DeltaDiscoveryRequest // all fields but initial_resource_versions

	// versions is the field initial_resource_versions. Its strings share the memory of the whole
	// request: retain only copies of them.
	versions map[string]string
}

// Field numbers of DeltaDiscoveryRequest and of the entries of its map.
const (
	requestVersionsField = 5
	entryNameField       = 1
	entryVersionField    = 2
)

var errVersionsUTF8 = errors.New("initial_resource_versions has a string that is not UTF-8")

// decode decodes a request, which must be empty before.
func (r *deltaRequest) decode(raw []byte) error {
	others := raw // fields that are not decoded yet, followed by rest
	text := ""    // copy of the message from the first entry of the map on
	for rest := raw; len(rest) > 0; {
		number, kind, value, size := consumeField(rest)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if number == requestVersionsField && kind == protowire.BytesType {
			if before := others[:len(others)-len(rest)]; len(before) > 0 {
				if err := r.merge(before); err != nil {
					return err
				}
			}
			if r.versions == nil {
				const least = 32 // estimated minimum size of an entry: bounds the reserved memory
				r.versions = make(map[string]string, len(rest)/max(size, least))
				text = string(rest)
			}
			end := len(text) - len(rest) + size
			if err := r.addVersion(value, text[end-len(value):end]); err != nil {
				return err
			}
			others = rest[size:]
		}
		rest = rest[size:]
	}
	return r.merge(others)
}

// merge decodes fields that are not versions.
func (r *deltaRequest) merge(fields []byte) error {
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(fields, &r.DeltaDiscoveryRequest)
}

// addVersion decodes an entry of the map. text is equal to raw, and may be retained.
func (r *deltaRequest) addVersion(raw []byte, text string) error {
	var name, version string
	for len(raw) > 0 {
		number, kind, value, size := consumeField(raw)
		if size < 0 {
			return protowire.ParseError(size)
		}
		end := len(text) - len(raw) + size
		switch {
		case kind != protowire.BytesType:
		case number == entryNameField:
			name = text[end-len(value) : end]
		case number == entryVersionField:
			version = text[end-len(value) : end]
		}
		raw = raw[size:]
	}
	if !utf8.ValidString(name) || !utf8.ValidString(version) {
		return errVersionsUTF8
	}
	r.versions[name] = version
	return nil
}

// consumeField returns the first field of a message, and its size with the tag. value is the last
// part of the field; it is nil unless the field is length-delimited. A negative size is an error
// code for protowire.ParseError.
func consumeField(raw []byte) (number protowire.Number, kind protowire.Type, value []byte, size int) {
	number, kind, tag := protowire.ConsumeTag(raw)
	if tag < 0 {
		return 0, 0, nil, tag
	}
	if kind == protowire.BytesType {
		value, size = protowire.ConsumeBytes(raw[tag:])
	} else {
		size = protowire.ConsumeFieldValue(number, kind, raw[tag:])
	}
	if size < 0 {
		return 0, 0, nil, size
	}
	return number, kind, value, tag + size
}
