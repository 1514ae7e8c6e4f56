package patch

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

const connectionManager = "envoy.filters.network.http_connection_manager"

func (a *application) networkFilters(l *listenerv3.Listener, c *listenerv3.FilterChain) {
	applies := func(p *patch) bool { return meetsListener(p, l) && meetsChain(p, l, c) }
	patches := a.of(networking.EnvoyFilter_NETWORK_FILTER)
	for _, p := range patches {
		if _, merges := p.merges(); merges || !applies(p) {
			continue
		}
		var done bool
		if c.Filters, done = insertByPosition(p, c.Filters,
			listenerMatch(p).GetFilterChain().GetFilter() != nil, func(f *listenerv3.Filter) bool {
				return meetsFilter(p, f)
			}); done {
			a.use(p)
		}
	}
	for _, f := range c.Filters {
		for _, p := range patches {
			if _, merges := p.merges(); merges && applies(p) && meetsFilter(p, f) {
				name, config := a.mergeConfig(p, f, p.value.(*listenerv3.Filter))
				if config != nil {
					f.Name, f.ConfigType = name, &listenerv3.Filter_TypedConfig{TypedConfig: config}
				}
			}
		}
		if f.Name == connectionManager {
			a.manager(f, applies)
		}
	}
}

// meetsFilter reports whether a patch matches a network filter.
func meetsFilter(p *patch, f *listenerv3.Filter) bool {
	match := listenerMatch(p).GetFilterChain().GetFilter()
	return match == nil || isNamed(f.Name, match.Name)
}

// isNamed reports whether a filter has the name in a patch's match, which may be Istio's name of an
// extension's filter.
func isNamed(filter, match string) bool {
	return filter == match || model.IstioFilterName(filter) == match
}

// manager patches the HTTP filters and the inline routes of an HTTP connection manager.
func (a *application) manager(f *listenerv3.Filter, applies func(*patch) bool) {
	patches := slices.DeleteFunc(a.of(networking.EnvoyFilter_HTTP_FILTER), func(p *patch) bool {
		return !applies(p) || !meetsFilter(p, f)
	})
	config := &hcmv3.HttpConnectionManager{}
	if f.GetTypedConfig() == nil || f.GetTypedConfig().UnmarshalTo(config) != nil {
		// The configuration is a TypedStruct, which cannot be merged into, or is not part of the
		// listener.
		return
	}
	before := proto.Clone(config)
	for _, p := range patches {
		if _, merges := p.merges(); merges {
			continue
		}
		sub := listenerMatch(p).GetFilterChain().GetFilter().GetSubFilter()
		var done bool
		if config.HttpFilters, done = insertByPosition(p, config.HttpFilters, sub != nil,
			func(h *hcmv3.HttpFilter) bool { return isNamed(h.Name, sub.GetName()) }); done {
			a.use(p)
		}
	}
	for _, h := range config.HttpFilters {
		for _, p := range patches {
			sub := listenerMatch(p).GetFilterChain().GetFilter().GetSubFilter()
			if _, merges := p.merges(); merges && (sub == nil || isNamed(h.Name, sub.Name)) {
				name, merged := a.mergeConfig(p, h, p.value.(*hcmv3.HttpFilter))
				if merged != nil {
					h.Name, h.ConfigType = name, &hcmv3.HttpFilter_TypedConfig{TypedConfig: merged}
				}
			}
		}
	}
	if routes := config.GetRouteConfig(); routes != nil {
		a.routes(routes)
	}
	if proto.Equal(before, config) {
		return
	}
	packed, err := pack(config)
	if err != nil {
		a.invalid(err)
		return
	}
	f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
}
