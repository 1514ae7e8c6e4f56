package discovery

import (
	"net/netip"

	"outrider.org/outrider/agent/discovery/model"
)

// Name is a host with the addresses that a DNS server answers for it.
type Name struct {
	Host      string
	Addresses []netip.Addr
	Ports     []model.Port
}

// Names returns the sorted hosts with addresses that are imported by a sidecar with these labels,
// in the settings' namespace.
func (s *Server) Names(labels map[string]string) []Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.config.world
	scope := w.Scope(model.Node{Type: model.Sidecar, Namespace: s.config.namespace, Labels: labels})
	var all []Name
	for _, host := range w.ServiceHosts() {
		service := scope.Imports(w, host)
		if service == nil {
			continue
		}
		if addresses := service.Addresses(); len(addresses) > 0 {
			all = append(all, Name{host, addresses, service.Ports})
		}
	}
	return all
}
