package translate

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"outrider.org/outrider/agent/resource"
)

// Guards holds the filters of a proxy that admit or deny what comes in, and the objects that they
// come from. The zero value admits everything.
type Guards struct {
	Requests    []*hcmv3.HttpFilter  // before the filters of routing
	Connections []*listenerv3.Filter // before the filter that forwards what is not parsed as HTTP
	Origins     []resource.Origin
}

// addTo puts the filters for requests before those of a connection manager.
func (g Guards) addTo(manager *hcmv3.HttpConnectionManager) {
	manager.HttpFilters = slices.Concat(g.Requests, manager.HttpFilters)
}

// before returns the filters for connections, then others.
func (g Guards) before(filters ...*listenerv3.Filter) []*listenerv3.Filter {
	return slices.Concat(g.Connections, filters)
}
