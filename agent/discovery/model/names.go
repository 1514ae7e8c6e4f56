package model

import "net/netip"

// Name is a host with the addresses that a DNS server answers for it.
type Name struct {
	Host      string
	Addresses []netip.Addr
	Service   *Service
}

// DNSNames returns the hosts with addresses that the Sidecar's scope imports, sorted.
func (w *World) DNSNames(scope *Scope) (all []Name) {
	for _, host := range w.ServiceHosts() {
		service := scope.Imports(w, host)
		if service == nil {
			continue
		}
		if addresses := service.Addresses(); len(addresses) > 0 {
			all = append(all, Name{host, addresses, service})
		}
	}
	return all
}
