package discovery

import (
	"cmp"
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/resource"
)

// ResourceOrigins lists the objects from which a resource, or one of its virtual hosts, was
// translated.
type ResourceOrigins struct {
	Type        string // type URL of the resource
	Name        string
	VirtualHost string            // virtual host in a route configuration; "": the whole resource
	Origins     []resource.Origin // objects, the most important one first
	// origins of a virtual host's routes, in order; nil: those in Origins
	RouteOrigins []resource.Origin
}

// Origins returns the origins of a proxy's resources, sorted by type, name and virtual host.
// Resources that were not translated from objects are left out. It returns an error if the proxy
// has no resources.
func (s *Server) Origins(node *corev3.Node) ([]ResourceOrigins, error) {
	v, err := s.viewOf(node)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	hosts := v.AllVirtualHostOrigins()
	snapshot, _ := v.Feed().Current()
	s.mu.Unlock()
	var all []ResourceOrigins
	for _, h := range hosts {
		all = append(all, ResourceOrigins{resource.RouteType, h.Routes, h.VirtualHost, h.Origins, h.RouteOrigins})
	}
	for _, kind := range snapshot.Types() {
		for name, r := range snapshot.ByType(kind) {
			if len(r.Origins) > 0 {
				all = append(all, ResourceOrigins{Type: kind, Name: name, Origins: r.Origins})
			}
		}
	}
	slices.SortFunc(all, func(a, b ResourceOrigins) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.VirtualHost, b.VirtualHost))
	})
	return all, nil
}

// viewOf returns the view of a proxy.
func (s *Server) viewOf(node *corev3.Node) (*served, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := parseNode(node, s.settings.Namespace)
	if err != nil {
		return nil, err
	}
	v, err := s.viewFor(s.classify(n, proxyName(node)))
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", node.GetId(), err)
	}
	return v, nil
}
