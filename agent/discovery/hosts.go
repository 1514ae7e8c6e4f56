package discovery

import (
	"net/netip"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

// addressIndex indexes the hosts of services by the addresses of their endpoints.
type addressIndex struct {
	hosts     map[string][]string // by address, sorted
	addresses map[string][]string // by host
}

func newAddressIndex(w *model.World) *addressIndex {
	index := &addressIndex{hosts: map[string][]string{}, addresses: map[string][]string{}}
	for _, host := range w.ServiceHosts() {
		index.set(host, endpointAddresses(w, host))
	}
	return index
}

// update indexes changed hosts again, and returns the addresses of their endpoints before and
// after.
func (i *addressIndex) update(w *model.World, hosts map[string]struct{}) map[string]struct{} {
	changed := map[string]struct{}{}
	for host := range hosts {
		for _, address := range i.addresses[host] {
			changed[address] = struct{}{}
		}
		now := endpointAddresses(w, host)
		for _, address := range now {
			changed[address] = struct{}{}
		}
		i.set(host, now)
	}
	return changed
}

// set replaces the addresses of a host.
func (i *addressIndex) set(host string, addresses []string) {
	for _, address := range i.addresses[host] {
		rest := slices.DeleteFunc(i.hosts[address], func(h string) bool { return h == host })
		if len(rest) == 0 {
			delete(i.hosts, address)
		} else {
			i.hosts[address] = rest
		}
	}
	if len(addresses) == 0 {
		delete(i.addresses, host)
		return
	}
	i.addresses[host] = addresses
	for _, address := range addresses {
		at, _ := slices.BinarySearch(i.hosts[address], host)
		i.hosts[address] = slices.Insert(i.hosts[address], at, host)
	}
}

// of returns the hosts of services with an endpoint at one of some addresses, sorted.
func (i *addressIndex) of(addresses []string) (hosts []string) {
	for _, address := range addresses {
		hosts = append(hosts, i.hosts[address]...)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// endpointAddresses returns the addresses of the endpoints of a host's services that a proxy may
// serve.
func endpointAddresses(w *model.World, host string) (all []string) {
	for _, service := range w.Services(host) {
		for i := range service.Ports {
			port := &service.Ports[i]
			if port.Entry.Resolution != networking.ServiceEntry_STATIC {
				continue
			}
			for _, e := range service.Endpoints(port, nil) {
				if parsed, err := netip.ParseAddr(e.Address); err == nil {
					all = append(all, parsed.String())
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
