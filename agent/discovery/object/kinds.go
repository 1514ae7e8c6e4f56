package object

import (
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"google.golang.org/protobuf/proto"
)

// Kind is an object's kind, as in YAML.
type Kind string

// The kinds of networking.istio.io, and of security.istio.io.
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

	PeerAuthentication    Kind = "PeerAuthentication"
	AuthorizationPolicy   Kind = "AuthorizationPolicy"
	RequestAuthentication Kind = "RequestAuthentication"
)

// The API groups of the kinds.
const (
	NetworkingGroup = "networking.istio.io"
	SecurityGroup   = "security.istio.io"
)

// definition describes a kind.
type definition struct {
	group     string
	spec      func() proto.Message // creates an empty spec; nil: the kind is not supported
	restricts bool                 // objects of the kind restrict access
}

// definitions is the table of kinds. Decoding, last good versions and the handling of kinds that
// restrict access derive from it.
var definitions = map[Kind]definition{
	ServiceEntry: {NetworkingGroup,
		func() proto.Message { return &networking.ServiceEntry{} }, false},
	VirtualService: {NetworkingGroup,
		func() proto.Message { return &networking.VirtualService{} }, false},
	DestinationRule: {NetworkingGroup,
		func() proto.Message { return &networking.DestinationRule{} }, false},
	Gateway: {NetworkingGroup,
		func() proto.Message { return &networking.Gateway{} }, false},
	WorkloadEntry: {NetworkingGroup,
		func() proto.Message { return &networking.WorkloadEntry{} }, false},
	WorkloadGroup: {NetworkingGroup,
		func() proto.Message { return &networking.WorkloadGroup{} }, false},
	EnvoyFilter: {NetworkingGroup,
		func() proto.Message { return &networking.EnvoyFilter{} }, false},
	Sidecar: {NetworkingGroup,
		func() proto.Message { return &networking.Sidecar{} }, false},
	ProxyConfig: {NetworkingGroup, nil, false},

	PeerAuthentication: {SecurityGroup,
		func() proto.Message { return &security.PeerAuthentication{} }, true},
	AuthorizationPolicy: {SecurityGroup,
		func() proto.Message { return &security.AuthorizationPolicy{} }, true},
	RequestAuthentication: {SecurityGroup,
		func() proto.Message { return &security.RequestAuthentication{} }, true},
}

// NewSpec returns an empty spec of a kind, nil if the kind is not supported.
func NewSpec(kind Kind) proto.Message {
	if of := definitions[kind]; of.spec != nil {
		return of.spec()
	}
	return nil
}

// Kinds returns the names of a group's kinds, sorted, also of those that are not supported.
func Kinds(group string) []string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(definitions)) {
		if definitions[kind].group == group {
			names = append(names, string(kind))
		}
	}
	return names
}

// Restricts reports whether objects of a supported kind restrict access.
func (k Kind) Restricts() bool { return definitions[k].restricts }
