package object

import (
	"maps"
	"slices"

	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"google.golang.org/protobuf/proto"
)

// Kind is the kind of an object, as in YAML.
type Kind string

// Kinds of networking.istio.io, security.istio.io, telemetry.istio.io and extensions.istio.io.
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

	Telemetry  Kind = "Telemetry"
	WasmPlugin Kind = "WasmPlugin"

	TrafficExtension Kind = "TrafficExtension"
)

// API groups of the kinds.
const (
	NetworkingGroup = "networking.istio.io"
	SecurityGroup   = "security.istio.io"
	TelemetryGroup  = "telemetry.istio.io"
	ExtensionsGroup = "extensions.istio.io"
)

// Groups returns the API groups that have supported kinds.
func Groups() []string {
	return []string{NetworkingGroup, SecurityGroup, TelemetryGroup, ExtensionsGroup}
}

// definition says how objects of a kind are decoded and treated.
type definition struct {
	group     string
	spec      func() proto.Message // returns an empty spec; nil: the kind is not supported
	restricts bool                 // objects of the kind can restrict access to workloads
}

// definitions is the table of kinds. It determines which kinds can be decoded, have last good
// versions, and restrict access.
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
	ProxyConfig: {NetworkingGroup,
		func() proto.Message { return &networkingbeta.ProxyConfig{} }, false},

	PeerAuthentication: {SecurityGroup,
		func() proto.Message { return &security.PeerAuthentication{} }, true},
	AuthorizationPolicy: {SecurityGroup,
		func() proto.Message { return &security.AuthorizationPolicy{} }, true},
	RequestAuthentication: {SecurityGroup,
		func() proto.Message { return &security.RequestAuthentication{} }, true},

	Telemetry: {TelemetryGroup,
		func() proto.Message { return &telemetry.Telemetry{} }, false},
	WasmPlugin: {ExtensionsGroup,
		func() proto.Message { return &extensions.WasmPlugin{} }, true},
	TrafficExtension: {ExtensionsGroup,
		func() proto.Message { return &extensions.TrafficExtension{} }, true},
}

// NewSpec returns an empty spec of a kind, nil if the kind is not supported.
func NewSpec(kind Kind) proto.Message {
	if of := definitions[kind]; of.spec != nil {
		return of.spec()
	}
	return nil
}

// Kinds returns the sorted names of all kinds in an API group, including those that are not
// supported.
func Kinds(group string) []string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(definitions)) {
		if definitions[kind].group == group {
			names = append(names, string(kind))
		}
	}
	return names
}

// Group returns the API group of a kind, "" if it is unknown.
func (k Kind) Group() string { return definitions[k].group }

// IsExtension reports whether objects of the kind are extensions of Envoy.
func (k Kind) IsExtension() bool { return k.Group() == ExtensionsGroup }

// CanRestrictAccess reports whether objects of a supported kind can restrict access.
func (k Kind) CanRestrictAccess() bool { return definitions[k].restricts }

// RestrictsAccess reports whether an object restricts access. Extensions restrict access only in
// the phases AUTHN and AUTHZ.
func (o *Object) RestrictsAccess() bool {
	return o.Kind.CanRestrictAccess() &&
		!unrestrictive(o.Spec)
}

// unrestrictive reports whether a spec is an extension in a phase that restricts nothing.
func unrestrictive(spec proto.Message) bool {
	switch of := spec.(type) {
	case *extensions.WasmPlugin:
		return of.Phase != extensions.PluginPhase_AUTHN && of.Phase != extensions.PluginPhase_AUTHZ
	case *extensions.TrafficExtension:
		return of.Phase != extensions.TrafficExtension_AUTHN &&
			of.Phase != extensions.TrafficExtension_AUTHZ
	}
	return false
}

// SpecRestrictsAccess reports whether a spec restricts access. It must be of a kind whose objects
// can restrict access.
func SpecRestrictsAccess(spec proto.Message) bool { return !unrestrictive(spec) }
