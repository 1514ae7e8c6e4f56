package model

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// Service is one host of one namespace: what all ServiceEntries there say of it.
type Service struct {
	Host      string
	Namespace string
	Entries   []*object.Object // that define a port of it, the oldest first
	Ports     []Port           // by age of their entry, then as written
	Shadowed  []Shadow
}

// Port is one port of a service.
type Port struct {
	Number   uint32
	Name     string
	Protocol Protocol
	Target   uint32 // where endpoints listen unless they say otherwise
	Entry    *networking.ServiceEntry
	Object   *object.Object // of Entry
}

// Shadow is a port that an older entry defines too.
type Shadow struct {
	Object *object.Object
	Index  int // in its ports
	By     *object.Object
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

// Oldest is the object that the service's age is told by.
func (s *Service) Oldest() *object.Object { return s.Entries[0] }

// newServices merges the entries of one host, by namespace; entries are in order of age.
func newServices(host string, entries []*object.Object) []*Service {
	var services []*Service
	for _, o := range entries {
		entry := o.Spec.(*networking.ServiceEntry)
		at := slices.IndexFunc(services, func(s *Service) bool { return s.Namespace == o.Namespace })
		if at < 0 {
			at = len(services)
			services = append(services, &Service{Host: host, Namespace: o.Namespace, Ports: make([]Port, 0, len(entry.Ports))})
		}
		s := services[at]
		s.Entries = append(s.Entries, o)
		for i, port := range entry.Ports {
			if known := s.Port(port.Number); known != nil {
				s.Shadowed = append(s.Shadowed, Shadow{Object: o, Index: i, By: known.Object})
				continue
			}
			protocol, _ := ParseProtocol(port.Protocol, port.Name)
			target := port.TargetPort
			if target == 0 {
				target = port.Number
			}
			s.Ports = append(s.Ports, Port{Number: port.Number, Name: port.Name, Protocol: protocol, Target: target, Entry: entry, Object: o})
		}
	}
	return services
}

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

// Service returns the service of a host that a proxy in a namespace sees: its own namespace's, else the oldest.
func (w *World) Service(host, namespace string) *Service {
	return w.service(host, namespace, func(*Service) bool { return true })
}

func (w *World) service(host, namespace string, accept func(*Service) bool) *Service {
	var found *Service
	for _, s := range w.services[host] {
		switch {
		case !accept(s), !visible(s.oldestSpec().ExportTo, w.mesh.ServiceExportTo, s.Namespace, namespace):
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
