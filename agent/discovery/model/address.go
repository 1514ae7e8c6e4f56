package model

import (
	"net/netip"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// entryAddresses are the single addresses of a ServiceEntry, which requests may name in place of
// its hosts.
func entryAddresses(o *object.Object) []string {
	if o == nil {
		return nil
	}
	var found []string
	for _, text := range o.Spec.(*networking.ServiceEntry).Addresses {
		address, err := netip.ParseAddr(text)
		if block, isBlock := netip.ParsePrefix(text); isBlock == nil && block.IsSingleIP() {
			address, err = block.Addr(), nil
		}
		if err == nil {
			found = append(found, address.Unmap().String())
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// changeAddresses takes a ServiceEntry in and tells which hosts share an address with it, before or
// after.
func (w *World) changeAddresses(c Change, hosts map[string]struct{}) {
	for _, address := range entryAddresses(c.Old) {
		remove(w.addresses, address, c.Old, object.Age)
		w.sharing(address, hosts)
	}
	for _, address := range entryAddresses(c.New) {
		insert(w.addresses, address, c.New, object.Age)
		w.sharing(address, hosts)
	}
}

// sharing adds the hosts that have an address.
func (w *World) sharing(address string, hosts map[string]struct{}) {
	for _, o := range w.addresses[address] {
		for _, host := range serviceHosts(o) {
			hosts[host] = struct{}{}
		}
	}
}

// Addresses are those by which requests on an HTTP port may name a service in place of its host:
// what no VirtualService names by itself, and no older service has on that port. named tells of an
// address whether a VirtualService that counts names it, sees the service of a host that counts.
func (w *World) Addresses(service *Service, port uint32, named func(address string) bool,
	sees func(host string) *Service) []string {
	var found []string
	for _, o := range service.Entries {
		for _, address := range entryAddresses(o) {
			if w.ownerOf(address, port, sees) == service && !named(address) {
				found = append(found, address)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func (w *World) ownerOf(address string, port uint32, sees func(host string) *Service) *Service {
	for _, o := range w.addresses[address] {
		for _, host := range serviceHosts(o) {
			s := sees(host)
			if s == nil || !slices.Contains(s.Entries, o) {
				continue
			}
			if p := s.Port(port); p != nil && p.Protocol.IsHTTP() {
				return s
			}
		}
	}
	return nil
}
