package dns

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// localAddresses knows the addresses of this host.
type localAddresses struct {
	known atomic.Pointer[map[netip.Addr]bool]
	mu    sync.Mutex
	read  time.Time
}

// rereadAfter bounds how often addresses are read for a querier that is not known.
const rereadAfter = time.Second

// has reports whether an address is one of this host.
func (l *localAddresses) has(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	if address.IsLoopback() {
		return true
	}
	if known := l.known.Load(); known != nil && (*known)[address] {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.read) < rereadAfter {
		return (*l.known.Load())[address]
	}
	found := map[netip.Addr]bool{}
	all, _ := net.InterfaceAddrs() // none after an error
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(network.IP); ok {
				found[a.Unmap()] = true
			}
		}
	}
	l.read = time.Now()
	l.known.Store(&found)
	return found[address]
}
