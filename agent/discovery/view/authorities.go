package view

import (
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// authorities publishes whom the mesh trusts, if that may have changed.
func (v *View) authorities() {
	if v.told == v.world.Mesh() {
		return
	}
	v.told = v.world.Mesh()
	config, err := translate.ProxyConfig(v.told)
	if err != nil { // none that was read is refused by the message
		v.tell("authorities", []object.Problem{{Field: "caCertificates", Severity: condition.Error,
			Message: err.Error()}})
		return
	}
	v.put("authorities", config)
	v.tell("authorities", nil)
}
