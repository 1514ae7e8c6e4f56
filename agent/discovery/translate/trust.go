package translate

import (
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/resource"
)

// proxyConfigName is the name of the only ProxyConfig resource. istiod's resource has no name.
const proxyConfigName = "mesh"

// TrustedCAsProxyConfig returns the resource with the CA certificates that the mesh trusts in
// addition to its own, in the form in which istiod serves it to agents. The resource exists even
// without certificates, so that the last one can be removed.
func TrustedCAsProxyConfig(m *mesh.Config) (*resource.Resource, error) {
	return resource.New(proxyConfigName, &meshapi.ProxyConfig{CaCertificatesPem: m.TrustedCAs})
}
