package model

import (
	"net/netip"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// DNSName is a host with the addresses that a DNS server answers for it.
type DNSName struct {
	Host      string
	Addresses []netip.Addr
	Service   *Service
}

// DNSNames returns the hosts with addresses that the Sidecar's scope imports, sorted.
func (w *Mesh) DNSNames(scope *SidecarScope) (all []DNSName) {
	for _, host := range w.ServiceHosts() {
		service := scope.ImportedService(w, host)
		if service == nil {
			continue
		}
		if addresses := service.Addresses(); len(addresses) > 0 {
			all = append(all, DNSName{host, addresses, service})
		}
	}
	return all
}

// ChangesDNSNames reports whether a change may change the DNSNames of a scope. A change of
// endpoints does not.
func ChangesDNSNames(c object.Change) bool {
	if kind := c.NewElseOld().Kind; kind != object.ServiceEntry {
		return kind == object.Sidecar
	}
	if c.Old == nil || c.New == nil {
		return true
	}
	before, now := c.Old.Spec.(*networking.ServiceEntry), c.New.Spec.(*networking.ServiceEntry)
	return !slices.Equal(before.Hosts, now.Hosts) || !slices.Equal(before.ExportTo, now.ExportTo) ||
		!slices.Equal(entryAddresses(c.Old), entryAddresses(c.New)) ||
		!c.Old.Created.Equal(c.New.Created)
}
