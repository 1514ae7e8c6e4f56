package model

import (
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// UnixScheme is the prefix of an endpoint's address that is a Unix socket.
const UnixScheme = "unix://"

// Endpoint is an address that serves a port of a service.
type Endpoint struct {
	Address  string // IP address, host name or unix:///path
	Port     uint32 // port of the endpoint; ignored for Unix sockets
	Labels   map[string]string
	Workload string // name of the workload; "" if it has none
	Locality Locality
	Network  string
	Weight   uint32 // weight for load balancing; at least 1

	MutualTLS bool // the endpoint has an identity of the mesh
	PlainText bool // the PeerAuthentication of the endpoint disables mutual TLS
}

// Label returns the value of an endpoint's label. The values of topology labels are taken from the
// endpoint's locality and network.
func (e *Endpoint) Label(key string) string { return labelOf(key, e.Labels, e.Locality, e.Network) }

// Label returns the value of a proxy's label. The values of topology labels are taken from the
// proxy's locality and network.
func (n Node) Label(key string) string { return labelOf(key, n.Labels, n.Locality, n.Network) }

func labelOf(key string, labels map[string]string, where Locality, network string) string {
	for i, part := range [...]string{where.Region, where.Zone, where.Subzone} {
		if key == TopologyLabels[i] && part != "" {
			return part
		}
	}
	if value := labels[key]; value != "" || key != NetworkLabel {
		return value
	}
	return network
}

// matches reports whether an endpoint has all labels of a selector.
func (e *Endpoint) matches(selector map[string]string) bool {
	for key, value := range selector {
		if _, ok := e.Labels[key]; e.Label(key) != value || !ok && value == "" {
			return false
		}
	}
	return true
}

// Endpoints returns the endpoints of a port that have the labels: first those of the oldest
// ServiceEntry, each in written order. A ServiceEntry with DNS and without endpoints yields its own
// host.
func (s *Service) Endpoints(port *Port, labels map[string]string) []Endpoint {
	var found []Endpoint
	byDNS := port.ResolvesNames()
	for i, o := range s.Entries {
		entry := o.Spec.(*networking.ServiceEntry)
		for _, own := range entry.Ports {
			if byDNS && own.Number != port.Number || !byDNS && own.Name != port.Name {
				continue
			}
			for _, e := range s.workloads(i, entry) {
				endpoint := newEndpoint(e, own)
				endpoint.PlainText = endpoint.MutualTLS &&
					s.MutualTLSSetting(endpoint).Mode == Disable
				if endpoint.isUsable(byDNS) && endpoint.matches(labels) {
					found = append(found, endpoint)
				}
			}
		}
	}
	if port.Entry.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(found) > 1 {
		return found[:1] // resolution DNS_ROUND_ROBIN permits one endpoint only
	}
	return found
}

// MutualTLSSetting returns the mode of mutual TLS that the PeerAuthentications set for an endpoint.
func (s *Service) MutualTLSSetting(e Endpoint) MutualTLSSetting {
	return s.peers.of(s.Namespace, e.Labels).PortMode(e.Port)
}

// IdentitySANs returns the service accounts of the service's endpoints.
func (s *Service) IdentitySANs() []string {
	var accounts []string
	for i, o := range s.Entries {
		for _, e := range s.workloads(i, o.Spec.(*networking.ServiceEntry)) {
			if e.ServiceAccount != "" && !slices.Contains(accounts, e.ServiceAccount) {
				accounts = append(accounts, e.ServiceAccount)
			}
		}
	}
	return accounts
}

// workloads returns the endpoints of one ServiceEntry: those that it lists or selects; if it has
// none and uses DNS, its own host.
func (s *Service) workloads(index int, entry *networking.ServiceEntry) []listed {
	switch {
	case entry.WorkloadSelector != nil && index < len(s.chosen):
		return s.chosen[index]
	case entry.WorkloadSelector != nil:
		return nil
	case len(entry.Endpoints) == 0 && resolvesNames(entry.Resolution):
		return []listed{{&networking.WorkloadEntry{Address: s.Host}, s.Entries[index].Name}}
	}
	all := make([]listed, len(entry.Endpoints))
	for i, e := range entry.Endpoints {
		all[i] = listed{e, e.Labels[WorkloadNameLabel]}
	}
	return all
}

func newEndpoint(e listed, port *networking.ServicePort) Endpoint {
	number := e.Ports[port.Name]
	if number == 0 {
		number = port.TargetPort
	}
	if number == 0 {
		number = port.Number
	}
	where := e.Locality
	if where == "" {
		where = strings.ReplaceAll(e.Labels[LocalityLabel], ".", "/")
	}
	return Endpoint{Address: e.Address, Port: number, Labels: e.Labels, Workload: e.workload,
		Locality: ParseLocality(where), Network: e.Network, Weight: max(e.Weight, 1),
		MutualTLS: takesMutualTLS(e.WorkloadEntry)}
}

// isUsable reports whether an endpoint is compatible with the service's resolution: host names
// require DNS, and Unix sockets exclude it. An endpoint without an address but with a network is
// not usable, because no gateway to the network is known.
func (e *Endpoint) isUsable(byDNS bool) bool {
	if e.Address == "" {
		return false
	}
	if strings.HasPrefix(e.Address, UnixScheme) {
		return !byDNS
	}
	_, err := netip.ParseAddr(e.Address)
	return byDNS || err == nil
}

func resolvesNames(r networking.ServiceEntry_Resolution) bool {
	return r == networking.ServiceEntry_DNS || r == networking.ServiceEntry_DNS_ROUND_ROBIN
}

// IsDynamicDNS reports whether the host of each request, or the server name of each connection, is
// resolved with DNS when it arrives.
func (p *Port) IsDynamicDNS() bool {
	return p != nil && p.Entry.Resolution == networking.ServiceEntry_DYNAMIC_DNS
}

// ResolvesNames reports whether the port's endpoints are resolved with DNS.
func (p *Port) ResolvesNames() bool { return resolvesNames(p.Entry.Resolution) }
