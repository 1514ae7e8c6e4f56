package discovery

import (
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

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
	all := map[string]bool{}
	add := func(name string, config *anypb.Any) {
		if translate.IsGuard(name) {
			all[name+string(config.GetValue())] = true
		}
	}
	for _, chain := range filterChains(r) {
		for _, f := range chain.GetFilters() {
			add(f.GetName(), f.GetTypedConfig())
			var manager hcmv3.HttpConnectionManager
			if f.GetTypedConfig().UnmarshalTo(&manager) != nil {
				continue
			}
			for _, f := range manager.GetHttpFilters() {
				add(f.GetName(), f.GetTypedConfig())
			}
		}
	}
	return all
}
