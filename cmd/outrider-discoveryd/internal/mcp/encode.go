package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcpv1 "istio.io/api/mcp/v1alpha1"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// resourceType is the type URL of the protobuf message that contains each object.
const resourceType = resource.TypePrefix + "istio.mcp.v1alpha1.Resource"

// Encode returns the MCP resource for an object. It is used as discovery.Options.EncodeObject.
func Encode(o *object.Object) (*resource.Resource, error) {
	spec, err := resource.Encode(o.Spec)
	if err != nil {
		return nil, err
	}
	message := &mcpv1.Resource{
		Metadata: &mcpv1.Metadata{Name: o.Namespace + "/" + o.Name, Labels: o.Labels,
			Annotations: o.Annotations},
		Body: &anypb.Any{Value: spec,
			TypeUrl: resource.TypePrefix + string(o.Spec.ProtoReflect().Descriptor().FullName())},
	}
	if !o.Created.IsZero() {
		message.Metadata.CreateTime = timestamppb.New(o.Created)
	}
	value, err := resource.Encode(message)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o, err)
	}
	// istiod ignores an object whose version has not changed, so the version is a hash of the
	// content.
	sum := sha256.Sum256(value)
	message.Metadata.Version = hex.EncodeToString(sum[:8])
	if value, err = resource.Encode(message); err != nil {
		return nil, fmt.Errorf("%s: %w", o, err)
	}
	group, _, _ := strings.Cut(o.APIVersion, "/")
	return resource.FromAny(typeURL(group, o.Kind), resourceType, message.Metadata.Name, value,
		o.Origin()), nil
}
