package model

import (
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// UnixScheme begins the address of an endpoint that is a Unix socket.
const UnixScheme = "unix://"

// Endpoint is where a port of a service is served.
type Endpoint struct {
	Address  string // an IP address, a host name, or unix:///path
	Port     uint32 // of no meaning with a Unix socket
	Labels   map[string]string
	Locality Locality
	Network  string
	Weight   uint32 // at least 1
}

// Label returns the value of a label; where an endpoint is tells those of topology.
func (e *Endpoint) Label(key string) string { return labelOf(key, e.Labels, e.Locality, e.Network) }

// Label returns the value of a label of the proxy; where it is tells those of topology.
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

// answers tells whether an endpoint has everything that a selector asks for.
func (e *Endpoint) answers(selector map[string]string) bool {
	for key, value := range selector {
		if _, ok := e.Labels[key]; e.Label(key) != value || !ok && value == "" {
			return false
		}
	}
	return true
}

// Endpoints are those of a port that have the given labels: of all entries that give the service
// this port, the oldest first, each in the order in which it is written. Entries that are resolved
// by DNS and name no endpoints stand for their own host.
func (s *Service) Endpoints(port *Port, labels map[string]string) []Endpoint {
	var found []Endpoint
	byDNS := port.ResolvesNames()
	for i, o := range s.Entries {
		entry := o.Spec.(*networking.ServiceEntry)
		for _, own := range entry.Ports {
			if byDNS && own.Number != port.Number || !byDNS && own.Name != port.Name {
				continue
			}
			for _, e := range s.served(i, entry) {
				endpoint := newEndpoint(e, own)
				if endpoint.reachable(byDNS) && endpoint.answers(labels) {
					found = append(found, endpoint)
				}
			}
		}
	}
	if port.Entry.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(found) > 1 {
		return found[:1] // all that such a cluster can have
	}
	return found
}

// Accounts are the service accounts of the service's endpoints.
func (s *Service) Accounts() []string {
	var accounts []string
	for i, o := range s.Entries {
		for _, e := range s.served(i, o.Spec.(*networking.ServiceEntry)) {
			if e.ServiceAccount != "" && !slices.Contains(accounts, e.ServiceAccount) {
				accounts = append(accounts, e.ServiceAccount)
			}
		}
	}
	return accounts
}

// served are the workloads that an entry of the service names, chooses, or stands for.
func (s *Service) served(index int, entry *networking.ServiceEntry) []*networking.WorkloadEntry {
	switch {
	case entry.WorkloadSelector != nil && index < len(s.chosen):
		return s.chosen[index]
	case entry.WorkloadSelector != nil:
		return nil
	case len(entry.Endpoints) == 0 && resolvesNames(entry.Resolution):
		return []*networking.WorkloadEntry{{Address: s.Host}}
	}
	return entry.Endpoints
}

func newEndpoint(e *networking.WorkloadEntry, port *networking.ServicePort) Endpoint {
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
	return Endpoint{Address: e.Address, Port: number, Labels: e.Labels,
		Locality: ParseLocality(where), Network: e.Network, Weight: max(e.Weight, 1)}
}

// reachable tells whether an endpoint can be one of a service: without DNS those with a name
// cannot, with it Unix sockets cannot. One that tells only its network is behind a gateway that
// nobody knows.
func (e *Endpoint) reachable(byDNS bool) bool {
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

// ResolvesNames tells whether endpoints of the port are looked up with DNS.
func (p *Port) ResolvesNames() bool { return resolvesNames(p.Entry.Resolution) }
