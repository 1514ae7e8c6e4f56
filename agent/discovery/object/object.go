// Package object holds what the discovery server reads: objects of Istio's API with the place they
// were written at, and what is wrong with them.
package object

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// Kind is an object's kind, as in YAML.
type Kind string

// The kinds of networking.istio.io.
const (
	ServiceEntry    Kind = "ServiceEntry"
	VirtualService  Kind = "VirtualService"
	DestinationRule Kind = "DestinationRule"
	Gateway         Kind = "Gateway"
	Sidecar         Kind = "Sidecar"
	EnvoyFilter     Kind = "EnvoyFilter"
	WorkloadEntry   Kind = "WorkloadEntry"
	WorkloadGroup   Kind = "WorkloadGroup"
	ProxyConfig     Kind = "ProxyConfig"
)

// Key names an object. Of two objects with one key the older counts.
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

// String is "Kind namespace/name".
func (k Key) String() string { return fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name) }

// Object is one object as it was read. It is immutable and shared.
type Object struct {
	Key
	Defaulted   bool   // it names no namespace: Key's is the default
	APIVersion  string // "networking.istio.io/v1"
	Labels      map[string]string
	Annotations map[string]string
	Conditions  map[string]string // of its status: the status of each type ("Healthy": "True")
	Created     time.Time         // metadata.creationTimestamp; zero if it has none
	File        string
	Line        int           // of the object's first key, from 1
	Index       int           // counts the objects of one document (a List has many)
	Spec        proto.Message // of istio.io/api/networking/v1alpha3, never nil
}

// In is the object where another namespace is the default; itself if that makes no difference.
func (o *Object) In(namespace string) *Object {
	if !o.Defaulted || o.Namespace == namespace {
		return o
	}
	moved := *o
	moved.Namespace = namespace
	return &moved
}

// Origin is where the object was written.
func (o *Object) Origin() resource.Origin {
	return resource.Origin{File: o.File, Line: o.Line, Kind: string(o.Kind), Namespace: o.Namespace,
		Name: o.Name}
}

// Age orders objects, the oldest first: by creation time (none is the oldest), then by file, then
// by place in the file.
func Age(a, b *Object) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.File, b.File),
		cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Index, b.Index))
}
