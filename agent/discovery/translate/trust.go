package translate

import (
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/resource"
)

// proxyConfigName names the only ProxyConfig. istiod's has no name.
const proxyConfigName = "mesh"

// ProxyConfig returns the resource with the CA certificates that the mesh trusts in addition to its
// own, as istiod serves it to agents. It exists even without any, so that the last one can be
// removed.
func ProxyConfig(m *mesh.Config) (*resource.Resource, error) {
	return resource.New(proxyConfigName, &meshapi.ProxyConfig{CaCertificatesPem: m.Authorities})
}
