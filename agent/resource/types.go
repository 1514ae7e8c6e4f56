package resource

import "strings"

// TypePrefix is the prefix of every type URL.
const TypePrefix = "type.googleapis.com/"

// Type URLs of the resources that Outrider serves (xDS v3).
const (
	ClusterType   = TypePrefix + "envoy.config.cluster.v3.Cluster"
	EndpointType  = TypePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType  = TypePrefix + "envoy.config.listener.v3.Listener"
	RouteType     = TypePrefix + "envoy.config.route.v3.RouteConfiguration"
	SecretType    = TypePrefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
	ExtensionType = TypePrefix + "envoy.config.core.v3.TypedExtensionConfig"
	RuntimeType   = TypePrefix + "envoy.service.runtime.v3.Runtime"
)

// Type URLs of resources that istiod sends to agents. Envoy requests none of them.
const (
	BootstrapType = TypePrefix + "envoy.config.bootstrap.v3.Bootstrap"
	// proxy configuration discovery service (PCDS) of istiod
	ProxyConfigType = TypePrefix + "istio.mesh.v1alpha1.ProxyConfig"
	// name table discovery service (NDS) of istiod
	NameTableType = TypePrefix + "istio.networking.nds.v1.NameTable"
)

// VirtualHostType is the type URL of on-demand virtual hosts (VHDS), which Outrider does not serve.
const VirtualHostType = TypePrefix + "envoy.config.route.v3.VirtualHost"

// HealthType is the type URL of requests by which agents report the workload's health to istiod:
// the error detail of the request says why the workload is unhealthy.
const HealthType = TypePrefix + "istio.v1.HealthInformation"

// TypeName returns the last element of a type URL, such as Cluster or Listener.
func TypeName(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '.')+1:] }
