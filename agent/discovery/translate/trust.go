package translate

import (
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/resource"
)

// proxyConfigName is the name of the only ProxyConfig. That of istiod has none.
const proxyConfigName = "mesh"

// ProxyConfig is what an agent beside Envoy is to know: as with istiod, the authorities that the
// mesh trusts beside its own. It is there without any, too, so that the last one can be taken back.
func ProxyConfig(m *mesh.Config) (*resource.Resource, error) {
	return resource.New(proxyConfigName, &meshapi.ProxyConfig{CaCertificatesPem: m.Authorities})
}
