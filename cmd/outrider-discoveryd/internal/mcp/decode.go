package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	mcpv1 "istio.io/api/mcp/v1alpha1"

	"outrider.org/outrider/agent/discovery/object"
)

// synthetic is the prefix of the names of ServiceEntries that istiod makes from services in its
// registries. They have no endpoints.
const synthetic = "synthetic-"

// decoded is an MCP resource, decoded to an object.
type decoded struct {
	apiVersion      string
	kind            object.Kind
	namespace, name string
	metadata        *mcpv1.Metadata
	spec            proto.Message
	broken          error // reason why spec is incomplete; nil: it is complete
}

// decode decodes a resource. It returns an error if the resource has no valid name. If only the
// spec cannot be decoded, it sets broken.
func decode(typeURL string, resource *anypb.Any) (*decoded, error) {
	var r mcpv1.Resource
	if err := resource.UnmarshalTo(&r); err != nil {
		return nil, err
	}
	namespace, name, ok := strings.Cut(r.GetMetadata().GetName(), "/")
	if !ok || name == "" {
		return nil, fmt.Errorf("resource name %q is not of the form NAMESPACE/NAME",
			r.GetMetadata().GetName())
	}
	at := strings.LastIndexByte(typeURL, '/')
	d := &decoded{apiVersion: typeURL[:at], kind: object.Kind(typeURL[at+1:]), namespace: namespace,
		name: name, metadata: r.Metadata}
	d.spec = object.NewSpec(d.kind)
	if err := r.Body.UnmarshalTo(d.spec); err != nil {
		d.broken = err
	} else if hasUnknown(d.spec.ProtoReflect()) {
		d.broken = errors.New("the object has fields that this version of Outrider does " +
			"not support")
	}
	return d, nil
}

func (d *decoded) qualified() string { return d.namespace + "/" + d.name }

// created returns the creation time of the object; zero if the server does not send it.
func (d *decoded) created() time.Time {
	if at := d.metadata.GetCreateTime(); at.GetSeconds() > 0 {
		return at.AsTime().Truncate(time.Second) // Kubernetes' creation times have whole seconds
	}
	return time.Time{}
}

// object returns the decoded object. path is the path of its input.
func (d *decoded) object(path string) *object.Object {
	return &object.Object{Key: object.Key{Kind: d.kind, Namespace: d.namespace, Name: d.name},
		APIVersion: d.apiVersion, Labels: d.metadata.Labels, Annotations: d.metadata.Annotations,
		Created: d.created(), File: path, Spec: d.spec}
}

// text returns the object as JSON. If the object is incomplete, its spec is replaced by one that no
// kind accepts. The store then refuses the object: its last good version remains in force, and a
// policy without a good version is replaced by a denial.
func (d *decoded) text() []byte {
	metadata := map[string]any{"name": d.name, "namespace": d.namespace}
	if len(d.metadata.Labels) > 0 {
		metadata["labels"] = d.metadata.Labels
	}
	if len(d.metadata.Annotations) > 0 {
		metadata["annotations"] = d.metadata.Annotations
	}
	if created := d.created(); !created.IsZero() {
		metadata["creationTimestamp"] = created.Format(time.RFC3339)
	}
	spec, err := protojson.Marshal(d.spec)
	if d.broken != nil {
		err = d.broken
	}
	if err != nil {
		// encoding a map of strings cannot fail
		spec, _ = json.Marshal(map[string]string{"unreadable": err.Error()})
	}
	text, err := json.Marshal(map[string]any{"apiVersion": d.apiVersion, "kind": string(d.kind),
		"metadata": metadata, "spec": json.RawMessage(spec)})
	if err != nil {
		// impossible: fails only for invalid UTF-8, which protobuf excludes
		return []byte(err.Error())
	}
	return text
}

// hasUnknown reports whether a message, or a message nested in it, has unknown fields.
func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	found := false
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, one protoreflect.Value) bool {
				found = found || hasUnknown(one.Message())
				return !found
			})
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				found = found || hasUnknown(v.List().Get(i).Message())
			}
		case !field.IsMap() && !field.IsList() && field.Message() != nil:
			found = hasUnknown(v.Message())
		}
		return !found
	})
	return found
}
