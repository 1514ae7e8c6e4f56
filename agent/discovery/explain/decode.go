package explain

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/resource"
)

// decode decodes a resource into a message of its type.
func decode[T proto.Message](r *resource.Resource, into T) (T, error) {
	if err := proto.Unmarshal(r.EncodedMessage(), into); err != nil {
		return into, fmt.Errorf("decode resource %s: %w", r.Name, err)
	}
	return into, nil
}

// unpack decodes a packed message into a message of its type. It returns false if the type differs
// or the message is invalid.
func unpack[T proto.Message](packed *anypb.Any, into T) (T, bool) {
	return into, packed.MessageIs(into) && packed.UnmarshalTo(into) == nil
}
