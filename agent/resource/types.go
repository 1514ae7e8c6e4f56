package resource

import "strings"

// TypePrefix begins the type URL of each message.
const TypePrefix = "type.googleapis.com/"

// The type URLs of the resources that Outrider serves (xDS v3).
const (
	ClusterType   = TypePrefix + "envoy.config.cluster.v3.Cluster"
	EndpointType  = TypePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType  = TypePrefix + "envoy.config.listener.v3.Listener"
	RouteType     = TypePrefix + "envoy.config.route.v3.RouteConfiguration"
	SecretType    = TypePrefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
	ExtensionType = TypePrefix + "envoy.config.core.v3.TypedExtensionConfig"
	RuntimeType   = TypePrefix + "envoy.service.runtime.v3.Runtime"
)

// The type URLs of resources that istiod serves to agents. Envoy requests none of them.
const (
	BootstrapType   = TypePrefix + "envoy.config.bootstrap.v3.Bootstrap"
	ProxyConfigType = TypePrefix + "istio.mesh.v1alpha1.ProxyConfig"   // PCDS
	NameTableType   = TypePrefix + "istio.networking.nds.v1.NameTable" // NDS
)

// VirtualHostType is the type of on-demand virtual hosts (VHDS), which Outrider does not serve.
const VirtualHostType = TypePrefix + "envoy.config.route.v3.VirtualHost"

// HealthType is the type of the requests in which istiod expects the workload's health: their error
// detail says why it is unhealthy.
const HealthType = TypePrefix + "istio.v1.HealthInformation"

// TypeName returns the last element of a type URL: Cluster, Listener.
func TypeName(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '.')+1:] }
