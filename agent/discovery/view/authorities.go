package view

import (
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// authorities publishes the mesh's trusted CA certificates if the mesh config has changed.
func (v *ProxyView) authorities() {
	if v.published == v.world.MeshConfig() {
		return
	}
	v.published = v.world.MeshConfig()
	config, err := translate.TrustedCAsProxyConfig(v.published)
	if err != nil { // never happens, because meshfile has validated the certificates
		v.report("authorities",
			[]object.Problem{{Field: "caCertificates", Severity: condition.Error,
				Message: err.Error()}})
		return
	}
	v.put("authorities", config)
	v.report("authorities", nil)
}
