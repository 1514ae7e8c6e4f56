package model

import (
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// Service is one host of one namespace: what all ServiceEntries there say of it.
type Service struct {
	Host      string
	Namespace string
	Entries   []*object.Object // the oldest first
	Ports     []Port           // by age of their entry, then as written
	Shadowed  []Shadow

	chosen [][]*networking.WorkloadEntry // by entry: what its selector chooses
}

// Port is one port of a service.
type Port struct {
	Number   uint32
	Name     string
	Protocol Protocol
	Entry    *networking.ServiceEntry
	Object   *object.Object // of Entry
}

// Shadow is a port of an entry that does not count.
type Shadow struct {
	Object *object.Object
	Index  int    // in its ports
	Port   *Port  // that counts in its place; nil where the entry as a whole cannot add ports
	Why    string // it cannot; "" with Port
}

// Port returns the port with a number, nil if there is none.
func (s *Service) Port(number uint32) *Port {
	for i := range s.Ports {
		if s.Ports[i].Number == number {
			return &s.Ports[i]
		}
	}
	return nil
}

// TargetPort is where the entry says that endpoints listen, 0 where it says nothing.
func (p *Port) TargetPort() uint32 {
	for _, own := range p.Entry.Ports {
		if own.Number == p.Number {
			return own.TargetPort
		}
	}
	return 0
}

// Oldest is the object that the service's age is told by.
func (s *Service) Oldest() *object.Object { return s.Entries[0] }

// newServices merges the entries of one host, by namespace, as Istio does; entries are in order of
// age. The oldest decides: others add ports where they do not differ in what is said of the whole
// service, and endpoints in any case.
func newServices(host string, entries []*object.Object, all workloads) []*Service {
	var services []*Service
	for _, o := range entries {
		at := slices.IndexFunc(services, func(s *Service) bool {
			return s.Namespace == o.Namespace
		})
		if at < 0 {
			at = len(services)
			services = append(services, &Service{Host: host, Namespace: o.Namespace,
				Ports: make([]Port, 0, len(o.Spec.(*networking.ServiceEntry).Ports))})
		}
		services[at].add(o, all.chosen(o))
	}
	return services
}

func (s *Service) add(o *object.Object, chosen []*networking.WorkloadEntry) {
	s.Entries = append(s.Entries, o)
	if chosen != nil || s.chosen != nil {
		s.chosen = append(append(s.chosen, make([][]*networking.WorkloadEntry,
			len(s.Entries)-1-len(s.chosen))...), chosen)
	}
	entry := o.Spec.(*networking.ServiceEntry)
	why := differs(s.Oldest(), o)
	for i, port := range entry.Ports {
		known := s.Port(port.Number)
		switch {
		case known != nil:
			if known.Name != port.Name || known.Entry.Resolution != entry.Resolution {
				s.Shadowed = append(s.Shadowed, Shadow{Object: o, Index: i, Port: known})
			}
		case why != "":
			s.Shadowed = append(s.Shadowed, Shadow{Object: o, Index: i, Why: why})
		default:
			protocol, _ := ParseProtocol(port.Protocol, port.Name)
			s.Ports = append(s.Ports, Port{Number: port.Number, Name: port.Name, Protocol: protocol,
				Entry: entry, Object: o})
		}
	}
}

// differs tells in what an entry differs from the oldest one of its host so that it cannot add
// ports; "" if it can.
func differs(oldest, o *object.Object) string {
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

// serviceHosts are the hosts of an entry as services have them.
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

// Service returns the service of a host that a proxy in a namespace sees: its own namespace's, else
// the oldest.
func (w *World) Service(host, namespace string) *Service {
	return w.service(host, namespace, func(*Service) bool { return true })
}

func (w *World) service(host, namespace string, accept func(*Service) bool) *Service {
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

// oldestSpec is the spec of the oldest entry, which decides who sees the service.
func (s *Service) oldestSpec() *networking.ServiceEntry {
	return s.Oldest().Spec.(*networking.ServiceEntry)
}
