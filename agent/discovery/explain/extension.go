package explain

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// extension adds a step to the explanation for a filter whose configuration is a resource of its
// own: a WasmPlugin or TrafficExtension. It reports whether the filter ends the request, for
// example because its module is missing.
func (e *explanation) extension(name string, source *corev3.ExtensionConfigSource,
	d *listener) (ended, known bool) {
	if source == nil {
		return false, false
	}
	key := resource.Key{Type: resource.ExtensionType, Name: name}
	r := e.proxy.Resources.Get(key)
	var config corev3.TypedExtensionConfig
	if r == nil || proto.Unmarshal(r.EncodedMessage(), &config) != nil {
		return false, false
	}
	title := name
	if len(r.Origins) > 0 {
		title = r.Origins[0].Object()
	}
	var denies, absent bool
	if f, ok := unpack(config.TypedConfig, &rbacv3.RBAC{}); ok {
		denies, absent = f.Rules != nil, true
	}
	if f, ok := unpack(config.TypedConfig, &networkrbacv3.RBAC{}); ok {
		denies, absent = f.Rules != nil, true
	}
	switch {
	case denies:
		e.deny("denied, as the module of "+title+" is not there", r.Origins)
		return true, true
	case absent:
		e.step("extension", title, r.Origins, "has no effect, as its module is not there")
		return false, true
	}
	e.step("extension", title, r.Origins, append(e.refusal(key), "runs")...)
	e.unknown("what %s does on listener %s", title, d.Name)
	e.foreign = e.foreign || e.hcm != nil
	return false, true
}
