package discovery

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// admitsWithoutGuards reports whether a listener lacks a filter that admits or denies and that a
// newer version has, or has it with other rules.
func admitsWithoutGuards(accepted, newest *resource.Resource) bool {
	before := guards(accepted)
	for filter := range guards(newest) {
		if !before[filter] {
			return true
		}
	}
	return false
}

// guards returns the names and encoded settings of the filters of a listener that admit or deny.
// They are the same in all its filter chains.
func guards(r *resource.Resource) map[string]bool {
	var listener listenerv3.Listener
	if proto.Unmarshal(r.Value(), &listener) != nil {
		return nil
	}
	all := map[string]bool{}
	for _, chain := range listener.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			if translate.IsGuard(f.GetName()) {
				all[f.GetName()+string(f.GetTypedConfig().GetValue())] = true
			}
			var manager hcmv3.HttpConnectionManager
			if f.GetTypedConfig().UnmarshalTo(&manager) != nil {
				continue
			}
			for _, f := range manager.GetHttpFilters() {
				if translate.IsGuard(f.GetName()) {
					all[f.GetName()+string(f.GetTypedConfig().GetValue())] = true
				}
			}
		}
	}
	return all
}
