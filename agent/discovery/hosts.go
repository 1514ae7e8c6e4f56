package discovery

import (
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
)

// addressIndex indexes the ports of services by the addresses of their endpoints.
type addressIndex struct {
	served    map[string][]view.EndpointPort // service ports by the address of an endpoint
	addresses map[string][]string            // addresses of endpoints by the host of their services
}

func newAddressIndex(w *model.Mesh) *addressIndex {
	index := &addressIndex{served: map[string][]view.EndpointPort{},
		addresses: map[string][]string{}}
	for _, host := range w.ServiceHosts() {
		index.set(host, view.EndpointPortsByAddress(w, host))
	}
	return index
}

// update replaces the index entries of changed hosts, and returns the addresses of their endpoints
// before and after the change.
func (i *addressIndex) update(w *model.Mesh, hosts map[string]struct{}) map[string]struct{} {
	changed := map[string]struct{}{}
	for host := range hosts {
		for _, address := range i.addresses[host] {
			changed[address] = struct{}{}
		}
		i.set(host, view.EndpointPortsByAddress(w, host))
		for _, address := range i.addresses[host] {
			changed[address] = struct{}{}
		}
	}
	return changed
}

// set replaces the ports of a host's services.
func (i *addressIndex) set(host string, served map[string][]view.EndpointPort) {
	for _, address := range i.addresses[host] {
		rest := slices.DeleteFunc(i.served[address],
			func(s view.EndpointPort) bool { return s.Host() == host })
		if len(rest) == 0 {
			delete(i.served, address)
		} else {
			i.served[address] = rest
		}
	}
	delete(i.addresses, host)
	for address, ports := range served {
		i.addresses[host] = append(i.addresses[host], address)
		i.served[address] = append(i.served[address], ports...)
	}
}

// of returns the service ports that have an endpoint at one of the addresses.
func (i *addressIndex) of(addresses []string) (all []view.EndpointPort) {
	for _, address := range addresses {
		all = append(all, i.served[address]...)
	}
	return all
}
