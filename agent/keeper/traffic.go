package keeper

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// traffic counts the sockets of a process.
type traffic struct {
	established uint64 // TCP connections, those to upstreams included
	downstream  uint64 // connections of clients, TCP or Unix, including doubtful ones
	own         uint64 // established TCP connections to Outrider's own listeners
	listening   bool   // the process has the socket of a TCP or UDP listener
	udp         bool   // the process has the socket of a UDP listener
}

// countTraffic returns the traffic of each process. The keys of own are the pids; the values are
// the addresses of the listeners that Outrider adds, whose connections do not count as those of
// clients. It ignores Unix sockets in folder, which belong to Envoy's admin interface. If it
// returns an error, the counts may be too low.
//
// SO_REUSEADDR distinguishes a client's connection from one to an upstream, also when Envoy has
// closed its listeners: Envoy sets it for listeners, and an accepted socket inherits it. Where the
// options of another process's socket cannot be read (a container's filter of system calls may
// refuse pidfd_getfd), the local port decides: see maybeAccepted. Of UDP sockets, only those of
// listeners have SO_REUSEPORT.
func countTraffic(own map[int][]netip.AddrPort, folder string,
	listened map[uint16]bool) (map[int]*traffic, error) {
	found := map[int]*traffic{}
	for pid := range own {
		found[pid] = &traffic{}
	}
	open, err := findSockets(slices.Sorted(maps.Keys(own)))
	defer open.close()
	if len(open.holders) == 0 {
		return found, err
	}
	seen := map[uint32]bool{} // inodes: the kernel may list a socket twice
	err = errors.Join(err, sockdiag.EachSocket(sockdiag.TCP, func(s sockdiag.Socket) {
		pid := open.owner(s.Inode)
		owner := found[pid]
		if owner == nil || seen[s.Inode] {
			return
		}
		seen[s.Inode] = true
		if s.State == sockdiag.Listen {
			for _, holder := range open.holders[s.Inode] {
				found[holder.pid].listening = true
			}
			return
		}
		if s.State == sockdiag.Established {
			owner.established++
		}
		if isOwn(s.Address, own[pid]) {
			if s.State == sockdiag.Established {
				owner.own++
			}
			return
		}
		client, known := open.option(s.Inode, unix.SO_REUSEADDR)
		if client || !known && maybeAccepted(s.Address.Port(), listened) {
			owner.downstream++
		}
	}, sockdiag.Established, sockdiag.FinWait1, sockdiag.FinWait2, sockdiag.CloseWait,
		sockdiag.Listen))
	err = errors.Join(err, sockdiag.EachSocket(sockdiag.UDP, func(s sockdiag.Socket) {
		holders := open.holders[s.Inode]
		if len(holders) == 0 {
			return
		}
		if listens, known := open.option(s.Inode, unix.SO_REUSEPORT); listens || !known {
			for _, holder := range holders {
				found[holder.pid].listening, found[holder.pid].udp = true, true
			}
		}
	}, sockdiag.Unconnected))
	err = errors.Join(err, sockdiag.EachUnixSocket("/proc/self", func(s sockdiag.UnixSocket) {
		owner := found[open.owner(s.Inode)]
		if owner != nil && s.Accepted && filepath.Dir(s.Path) != folder {
			owner.downstream++
		}
	}))
	for _, its := range found {
		if its.udp { // there may always be UDP requests in flight, which the kernel does not count
			its.downstream = max(its.downstream, its.established-its.own)
		}
	}
	if err != nil {
		return found, fmt.Errorf("count connections: %w", err)
	}
	return found, nil
}

// isOwn reports whether a connection's local address is one of Outrider's own listeners.
func isOwn(local netip.AddrPort, own []netip.AddrPort) bool {
	return slices.ContainsFunc(own, func(o netip.AddrPort) bool {
		return o.Port() == local.Port() &&
			(o.Addr().IsUnspecified() || o.Addr() == local.Addr().Unmap())
	})
}

// firstChosen is the lowest local port that the kernel assigns by default to a connection to an
// upstream. The keeper cannot read net.ipv4.ip_local_port_range, which its unit hides.
const firstChosen = 32768

// maybeAccepted reports whether a connection with a local port may be a client's: the kernel did
// not choose the port, or a process has listened on it.
func maybeAccepted(port uint16, listened map[uint16]bool) bool {
	return port < firstChosen || listened[port]
}

// listenedPorts are the TCP ports of this network namespace that had a listener at any call of
// look. Ports are never removed: clients of a closed listener may still be connected.
type listenedPorts struct {
	mu    sync.Mutex
	ports map[uint16]bool
}

// look adds the ports that have a listener now, and returns all ports. If it returns an error,
// ports may be missing.
func (l *listenedPorts) look() (map[uint16]bool, error) {
	listening, err := sockdiag.ListeningSockets()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ports == nil {
		l.ports = map[uint16]bool{}
	}
	for _, socket := range listening {
		l.ports[socket.Address.Port()] = true
	}
	return maps.Clone(l.ports), err
}
