// Package object defines the objects of Istio's API, with the file and line where they are written,
// and the problems found in them.
package object

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// DryRunAnnotation marks an AuthorizationPolicy that is evaluated but not enforced.
const DryRunAnnotation = "istio.io/dry-run"

// Key identifies an object. Of two objects with the same key the older one has precedence.
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

// String returns the key as "Kind namespace/name".
func (k Key) String() string { return fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name) }

// Object is one decoded object. It is immutable and shared.
type Object struct {
	Key
	NamespaceDefaulted bool   // the object names no namespace; Key has the default one
	APIVersion         string // API group and version, such as "networking.istio.io/v1"
	Labels             map[string]string
	Annotations        map[string]string
	Conditions         map[string]string // status conditions by type, for example {"Healthy": "True"}
	Created            time.Time         // creation time from metadata.creationTimestamp; may be zero
	File               string            // path of the file, or name of an input that is no file
	// line of the object's first key, from 1; 0 if the object is in no file
	Line  int
	Index int           // index of the object in its document, for Lists
	Spec  proto.Message // message of istio.io/api; never nil
	// lines of the elements of spec.http, relative to Line; nil: unknown
	RouteLines []int
}

// WithNamespace returns a copy of the object in the default namespace. It returns o itself if o's
// metadata names a namespace, or if o is already in the default namespace.
func (o *Object) WithNamespace(namespace string) *Object {
	if !o.NamespaceDefaulted || o.Namespace == namespace {
		return o
	}
	moved := *o
	moved.Namespace = namespace
	return &moved
}

// Change is an object before and after a change; nil means that it does not exist.
type Change struct{ Old, New *Object }

// NewElseOld returns the object after the change, or before the change if the object was removed.
func (c Change) NewElseOld() *Object {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

// Compare orders changes by the age of their objects.
func (c Change) Compare(d Change) int { return CompareAge(c.NewElseOld(), d.NewElseOld()) }

// Equal reports whether two objects have the same content, whatever their file and line. A nil
// object equals only nil.
func Equal(a, b *Object) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return a.Key == b.Key && a.Created.Equal(b.Created) && maps.Equal(a.Labels, b.Labels) &&
		maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Conditions, b.Conditions) &&
		proto.Equal(a.Spec, b.Spec)
}

// Position returns the object's position as "file:line"; see resource.Position.
func (o *Object) Position() string { return resource.Position(o.File, o.Line) }

// Origin returns the object's identity and position as an Origin.
func (o *Object) Origin() resource.Origin {
	return resource.Origin{File: o.File, Line: o.Line, Kind: string(o.Kind), Namespace: o.Namespace,
		Name: o.Name}
}

// RouteOrigin returns the origin of a route: the VirtualService, at the line of its
// spec.http[index].
func (o *Object) RouteOrigin(index int) resource.Origin {
	origin := o.Origin()
	if index < len(o.RouteLines) {
		origin.Line += o.RouteLines[index]
	}
	return origin
}

// CompareAge compares objects by age, the oldest first: by creation time (zero first), then by
// file, then by position.
func CompareAge(a, b *Object) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.File, b.File),
		cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Index, b.Index))
}

// EncodeDeterministic returns a deterministic encoding, which is the same for equal messages.
func EncodeDeterministic(m proto.Message) string {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err.Error() // marshaling fails only for invalid UTF-8, which YAML cannot contain
	}
	return string(encoded)
}
