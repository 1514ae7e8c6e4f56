package model

import (
	"net/netip"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// entryAddresses returns the single IP addresses of a ServiceEntry. Requests may use these instead
// of the entry's hosts.
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

// Addresses returns the single IP addresses of the service's ServiceEntries, sorted.
func (s *Service) Addresses() (all []netip.Addr) {
	for _, o := range s.Entries {
		for _, text := range entryAddresses(o) {
			all = append(all, netip.MustParseAddr(text))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// changeAddresses updates the index of addresses for a changed ServiceEntry. It adds to hosts every
// host that shares an address with the ServiceEntry, before or after the change.
func (w *Mesh) changeAddresses(c object.Change, hosts map[string]struct{}) {
	for _, address := range entryAddresses(c.Old) {
		remove(w.addresses, address, c.Old)
		w.addHostsOf(address, hosts)
	}
	for _, address := range entryAddresses(c.New) {
		insert(w.addresses, address, c.New, object.CompareAge)
		w.addHostsOf(address, hosts)
	}
}

// addHostsOf adds to hosts the hosts of all ServiceEntries that have an address.
func (w *Mesh) addHostsOf(address string, hosts map[string]struct{}) {
	for _, o := range w.addresses[address] {
		for _, host := range serviceHosts(o) {
			hosts[host] = struct{}{}
		}
	}
}

// ServiceAddresses returns the addresses by which requests on an HTTP port may name a service
// instead of its host. It omits addresses for which named returns true, because a VirtualService
// names them, and addresses that an older service has on the same port. sees returns the visible
// service of a host.
func (w *Mesh) ServiceAddresses(service *Service, port uint32, named func(address string) bool,
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

func (w *Mesh) ownerOf(address string, port uint32, sees func(host string) *Service) *Service {
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
