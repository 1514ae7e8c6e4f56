// Package object defines the objects of Istio's API, with the file and line that they come from,
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

// DryRunAnnotation marks an AuthorizationPolicy that is evaluated and not enforced.
const DryRunAnnotation = "istio.io/dry-run"

// Key identifies an object. Of two objects with the same key the older one has precedence.
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

// String returns "Kind namespace/name".
func (k Key) String() string { return fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name) }

// Object is one decoded object. It is immutable and shared.
type Object struct {
	Key
	Defaulted   bool   // without a namespace of its own; Key has the default
	APIVersion  string // "networking.istio.io/v1"
	Labels      map[string]string
	Annotations map[string]string
	Conditions  map[string]string // status conditions by type: {"Healthy": "True"}
	Created     time.Time         // metadata.creationTimestamp, may be zero
	File        string            // or the path of an input of another source
	Line        int               // of the object's first key, from 1; 0: of an input
	Index       int               // position within the document, for Lists
	Spec        proto.Message     // a message of istio.io/api, never nil
	Routes      []int             // lines of spec.http[i], minus Line; nil: unknown
}

// In returns the object with its default namespace replaced, or o itself if nothing changes.
func (o *Object) In(namespace string) *Object {
	if !o.Defaulted || o.Namespace == namespace {
		return o
	}
	moved := *o
	moved.Namespace = namespace
	return &moved
}

// Change is an object before and after; nil if it did not exist.
type Change struct{ Old, New *Object }

// Newest returns the object after the change, or the one that was removed.
func (c Change) Newest() *Object {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

// Compare orders changes by the age of their objects.
func (c Change) Compare(d Change) int { return Age(c.Newest(), d.Newest()) }

// Equal reports whether two objects have the same content; file and line do not count. nil is no
// object, and equals only nil.
func Equal(a, b *Object) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return a.Key == b.Key && a.Created.Equal(b.Created) && maps.Equal(a.Labels, b.Labels) &&
		maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Conditions, b.Conditions) &&
		proto.Equal(a.Spec, b.Spec)
}

// Position returns "file:line", see resource.Position.
func (o *Object) Position() string { return resource.Position(o.File, o.Line) }

// Origin returns where the object is written.
func (o *Object) Origin() resource.Origin {
	return resource.Origin{File: o.File, Line: o.Line, Kind: string(o.Kind), Namespace: o.Namespace,
		Name: o.Name}
}

// RouteOrigin returns where a route is written, an element of a VirtualService's spec.http.
func (o *Object) RouteOrigin(index int) resource.Origin {
	origin := o.Origin()
	if index < len(o.Routes) {
		origin.Line += o.Routes[index]
	}
	return origin
}

// Age orders objects from the oldest: by creation time (zero first), then by file, then by
// position.
func Age(a, b *Object) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.File, b.File),
		cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Index, b.Index))
}

// Wire returns an encoding that is the same for equal messages.
func Wire(m proto.Message) string {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err.Error() // invalid UTF-8, which YAML excludes
	}
	return string(encoded)
}
