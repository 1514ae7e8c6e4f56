package model

import (
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// Service is the result of merging all ServiceEntries for one host in one namespace.
type Service struct {
	Host      string
	Namespace string
	Entries   []*object.Object // merged ServiceEntries, the oldest first
	Ports     []Port           // ports by the age of their ServiceEntry, then in written order
	Shadowed  []ShadowedPort

	// workloads that the selector of each of Entries matches
	chosen [][]listed
	peers  *peerPolicies
}

// Port is one port of a service, with the ServiceEntry that defines it.
type Port struct {
	Number   uint32
	Name     string
	Protocol Protocol
	Entry    *networking.ServiceEntry
	Object   *object.Object // ServiceEntry with the spec Entry
}

// ShadowedPort is a port of a ServiceEntry that has no effect.
type ShadowedPort struct {
	Object *object.Object
	Index  int    // index in the field ports of Object
	Port   *Port  // port that has precedence; nil if Object cannot add ports
	Reason string // why the port has no effect, if Port is nil
}

// Port returns the port of the service with a number, nil if there is none.
func (s *Service) Port(number uint32) *Port {
	for i := range s.Ports {
		if s.Ports[i].Number == number {
			return &s.Ports[i]
		}
	}
	return nil
}

// TargetPort returns the targetPort of the port in its ServiceEntry, 0 if not set.
func (p *Port) TargetPort() uint32 {
	for _, own := range p.Entry.Ports {
		if own.Number == p.Number {
			return own.TargetPort
		}
	}
	return 0
}

// OldestServiceEntry returns the oldest ServiceEntry of the service. Its age is the age of the
// service.
func (s *Service) OldestServiceEntry() *object.Object { return s.Entries[0] }

// newServices merges the ServiceEntries of one host by namespace, as Istio does. entries are
// ordered by age. The oldest one has precedence. The others add their endpoints, and, if their
// service-wide settings are the same, their ports.
func newServices(host string, entries []*object.Object, all workloads,
	peers *peerPolicies) []*Service {
	var services []*Service
	for _, o := range entries {
		at := slices.IndexFunc(services, func(s *Service) bool {
			return s.Namespace == o.Namespace
		})
		if at < 0 {
			at = len(services)
			services = append(services, &Service{Host: host, Namespace: o.Namespace, peers: peers,
				Ports: make([]Port, 0, len(o.Spec.(*networking.ServiceEntry).Ports))})
		}
		services[at].add(o, all.chosen(o))
	}
	return services
}

func (s *Service) add(o *object.Object, chosen []listed) {
	s.Entries = append(s.Entries, o)
	if chosen != nil || s.chosen != nil {
		s.chosen = append(append(s.chosen, make([][]listed,
			len(s.Entries)-1-len(s.chosen))...), chosen)
	}
	entry := o.Spec.(*networking.ServiceEntry)
	why := conflict(s.OldestServiceEntry(), o)
	for i, port := range entry.Ports {
		known := s.Port(port.Number)
		switch {
		case known != nil:
			if known.Name != port.Name || known.Entry.Resolution != entry.Resolution {
				s.Shadowed = append(s.Shadowed, ShadowedPort{Object: o, Index: i, Port: known})
			}
		case why != "":
			s.Shadowed = append(s.Shadowed, ShadowedPort{Object: o, Index: i, Reason: why})
		default:
			protocol, _ := ParseProtocol(port.Protocol, port.Name)
			s.Ports = append(s.Ports, Port{Number: port.Number, Name: port.Name, Protocol: protocol,
				Entry: entry, Object: o})
		}
	}
}

// conflict returns the setting in which a ServiceEntry differs from the oldest one, so that it
// cannot add ports; "" if there is none.
func conflict(oldest, o *object.Object) string {
	a, b := oldest.Spec.(*networking.ServiceEntry), o.Spec.(*networking.ServiceEntry)
	switch {
	case a.Resolution != b.Resolution:
		return "resolution"
	case !maps.Equal(oldest.Labels, o.Labels):
		return "labels of its metadata"
	case !maps.Equal(a.WorkloadSelector.GetLabels(), b.WorkloadSelector.GetLabels()):
		return "workloadSelector"
	case !slices.Equal(sorted(a.ExportTo), sorted(b.ExportTo)):
		return "exportTo"
	}
	return ""
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// serviceHosts returns the hosts of a ServiceEntry, in lower case and sorted.
func serviceHosts(o *object.Object) []string {
	if o == nil || o.Kind != object.ServiceEntry {
		return nil
	}
	hosts := slices.Clone(o.Spec.(*networking.ServiceEntry).Hosts)
	for i := range hosts {
		hosts[i] = strings.ToLower(hosts[i])
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// Service returns the service of a host that is visible to a namespace: the one in the namespace
// itself, else the oldest.
func (w *Mesh) Service(host, namespace string) *Service {
	return w.service(host, namespace, func(*Service) bool { return true })
}

func (w *Mesh) service(host, namespace string, accept func(*Service) bool) *Service {
	var found *Service
	for _, s := range w.services[host] {
		switch {
		case !accept(s), !visible(s.oldestSpec().ExportTo, w.mesh.ServiceExportTo, s.Namespace,
			namespace):
		case s.Namespace == namespace:
			return s
		case found == nil:
			found = s
		}
	}
	return found
}

// Services returns all services of a host, whatever their visibility.
func (w *Mesh) Services(host string) []*Service { return w.services[host] }

// oldestSpec returns the spec of the oldest ServiceEntry, whose exportTo applies to the service.
func (s *Service) oldestSpec() *networking.ServiceEntry {
	return s.OldestServiceEntry().Spec.(*networking.ServiceEntry)
}
