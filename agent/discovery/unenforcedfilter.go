package discovery

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// admitsPast returns a function that reports whether a listener has a filter chain without an HTTP
// filter that the chain has in a newer version, or with another configuration of it.
func admitsPast(filter string) func(accepted, newest *resource.Resource) bool {
	return func(accepted, newest *resource.Resource) bool {
		before := httpFilters(accepted, filter)
		for chain, config := range httpFilters(newest, filter) {
			if former, ok := before[chain]; ok && config != "" && former != config {
				return true
			}
		}
		return false
	}
}

// httpFilters returns the encoded configuration of an HTTP filter by filter chain with HTTP; "" if
// the chain does not have it.
func httpFilters(r *resource.Resource, name string) map[string]string {
	var listener listenerv3.Listener
	if proto.Unmarshal(r.Value(), &listener) != nil {
		return nil
	}
	all := map[string]string{}
	for _, chain := range listener.GetFilterChains() {
		for _, filter := range chain.GetFilters() {
			var manager hcmv3.HttpConnectionManager
			if filter.GetTypedConfig().UnmarshalTo(&manager) != nil {
				continue
			}
			all[chain.Name] = ""
			for _, f := range manager.HttpFilters {
				if f.Name == name {
					all[chain.Name] = string(f.GetTypedConfig().GetValue())
				}
			}
		}
	}
	return all
}
