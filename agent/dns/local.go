package dns

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// localAddresses caches the addresses of this host.
type localAddresses struct {
	known atomic.Pointer[knownAddresses]
	mu    sync.Mutex
}

// knownAddresses is the set of addresses at a time. It is immutable.
type knownAddresses struct {
	read time.Time
	all  map[netip.Addr]bool
}

const (
	// rereadAfter is the minimum age at which the host's addresses are read again because a
	// client's address is not among them.
	rereadAfter = time.Second
	// staleAfter is the maximum age of the addresses, and so the maximum time for which an address
	// that has moved to another host still counts as local.
	staleAfter = 5 * time.Second
)

// has reports whether an address is one of this host.
func (l *localAddresses) has(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	if address.IsLoopback() {
		return true
	}
	if known := l.known.Load(); known != nil && known.all[address] &&
		time.Since(known.read) < staleAfter {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.known.Load(); known != nil && time.Since(known.read) < rereadAfter {
		return known.all[address]
	}
	found := &knownAddresses{time.Now(), map[netip.Addr]bool{}}
	all, _ := net.InterfaceAddrs() // none after an error
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(network.IP); ok {
				found.all[a.Unmap()] = true
			}
		}
	}
	l.known.Store(found)
	return found.all[address]
}
