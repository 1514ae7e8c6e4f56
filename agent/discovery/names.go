package discovery

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/discovery/model"
)

// DNSName is a host with the addresses that a DNS server answers for it.
type DNSName struct {
	Host      string
	Addresses []netip.Addr
	Ports     []model.Port
}

// DNSNames returns the sorted hosts with addresses that are imported by a sidecar with these
// labels, in the settings' namespace.
func (s *Server) DNSNames(labels map[string]string) []DNSName {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names(model.Node{Namespace: s.config.namespace, Labels: labels})
}

// DNSNamesOf returns the hosts with addresses that a proxy imports, sorted.
func (s *Server) DNSNamesOf(node *corev3.Node) ([]DNSName, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := parseNode(node, s.settings.Namespace)
	if err != nil {
		return nil, err
	}
	return s.names(n), nil
}

// names returns the sorted hosts with addresses that the proxy of a node imports. Callers hold mu.
func (s *Server) names(node model.Node) []DNSName {
	w := s.config.world
	names := w.DNSNames(w.SidecarScope(node))
	all := make([]DNSName, len(names))
	for i, n := range names {
		all[i] = DNSName{n.Host, n.Addresses, n.Service.Ports}
	}
	return all
}
