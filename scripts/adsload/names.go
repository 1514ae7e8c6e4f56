package adsload

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// Types of resources that a client requests, in Envoy's order.
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// endpointNames returns the names under which the clusters in a response request their endpoints:
// eds_cluster_config.service_name (3.2) or, if that is empty, name (1). It omits clusters without
// an eds_cluster_config. The numbers are those of the protobuf fields.
func endpointNames(r Response) ([]string, error) {
	var names []string
	err := r.values(func(cluster []byte) {
		eds := first(cluster, 3)
		if eds == nil {
			return
		}
		if name := first(eds, 2); len(name) > 0 {
			names = append(names, string(name))
		} else {
			names = append(names, string(first(cluster, 1)))
		}
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// routeNames returns the names of the route configurations that the listeners in a response
// request: route_config_name (2) of rds (3) in the typed_config (4, its value 2) of the filters (3)
// of filter_chains (3) and default_filter_chain (25). The numbers are those of the protobuf fields.
func routeNames(r Response) ([]string, error) {
	var names []string
	err := r.values(func(listener []byte) {
		for _, chain := range []protowire.Number{3, 25} {
			for _, config := range every(listener, chain, 3, 4) {
				if string(first(config, 1)) != "type.googleapis.com/envoy.extensions.filters.network."+
					"http_connection_manager.v3.HttpConnectionManager" {
					continue
				}
				for _, name := range every(config, 2, 3, 2) {
					names = append(names, string(name))
				}
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// nameCache shares the names that the first client has parsed with the other clients, which receive
// the same resources.
type nameCache struct {
	mu    sync.Mutex
	known map[string][]string // by type of the response

	versions versions
}

// names returns the names in r to request. The first caller per type parses them while the others
// wait.
func (l *nameCache) names(r Response, read func(Response) ([]string, error)) ([]string, error) {
	if l == nil {
		return read(r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if names, ok := l.known[r.TypeURL]; ok {
		return names, nil
	}
	names, err := read(r)
	if err == nil {
		l.known[r.TypeURL] = names
	}
	return names, err
}
