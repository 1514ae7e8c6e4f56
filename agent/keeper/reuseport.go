package keeper

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// If two Envoys listen on the same ports (SO_REUSEPORT), the kernel distributes new connections to
// both. When the older Envoy closes its listeners, the kernel resets the connections that it has
// not accepted. To avoid that, the keeper attaches a BPF program to each group of sockets
// (SO_ATTACH_REUSEPORT_CBPF, without privilege), which selects only sockets of the newer Envoy. See
// docs/decisions/0006.

// steering directs new connections away from an Envoy.
type steering struct {
	from    string
	closing *time.Timer // fires closingLead before the Envoy with ID from closes its listeners
}

// closingLead is the time before an Envoy closes its listeners at which the keeper replaces the BPF
// programs by variants for that phase (parameter closing of program).
const closingLead = 200 * time.Millisecond

// steer directs new connections to one of two Envoys that listen on the same ports. The parameters
// from and to are the IDs of the Envoy that receives no more connections and of the one that
// receives them all. closes is the time until Envoy from closes its listeners. Ports that the error
// names are unchanged.
func (s *server) steer(from, to string, closes time.Duration) error {
	s.mu.Lock()
	if s.steered != nil {
		s.steered.closing.Stop()
	}
	s.steered = &steering{from, time.AfterFunc(max(closes-closingLead, 0), func() {
		err := s.divert(from, to, true)
		if err != nil && !HasCode(err, CodeNotFound) { // not found: one of the Envoys has exited
			s.logf("%v", err)
		}
	})}
	s.mu.Unlock()
	return s.divert(from, to, closes <= closingLead)
}

// divert attaches BPF programs to the groups of sockets in which both Envoys have sockets.
func (s *server) divert(from, to string, closing bool) error {
	s.attaching.Lock()
	defer s.attaching.Unlock()
	s.mu.Lock()
	target, found := 0, false
	var pids []int
	for _, c := range s.find((*child).lives) {
		if c.process.ID == to {
			target = c.process.PID
			continue
		}
		pids = append(pids, c.process.PID)
		found = found || c.process.ID == from
	}
	s.mu.Unlock()
	if target == 0 || !found {
		return refuse(CodeNotFound, "cannot steer connections from %q to %q: not two living Envoys",
			from, to)
	}
	open, err := findSockets(append(pids, target))
	defer open.close()
	if err != nil {
		return err
	}
	groups, err := sharedGroups(open, target)
	failures := []error{err}
	for key, group := range groups {
		if err := group.steer(open, closing); err != nil {
			failures = append(failures, fmt.Errorf(
				"steer connections that clients open to %s: %w", key.address, err))
		}
	}
	return errors.Join(failures...)
}

// release detaches the BPF programs after the exit of the Envoy from which connections were steered
// away.
func (s *server) release() {
	s.attaching.Lock()
	defer s.attaching.Unlock()
	s.mu.Lock()
	steered := s.steered != nil // connections are already steered away from another Envoy
	s.mu.Unlock()
	if steered {
		return
	}
	open, err := findSockets(s.livingPIDs())
	defer open.close()
	listeners, listErr := sockdiag.ListeningSockets()
	if err = errors.Join(err, listErr); err != nil {
		s.logf("detach programs from listeners: %v", err)
	}
	for _, l := range listeners {
		if open.owner(l.Inode) != 0 {
			_ = open.with(l.Inode, detach) // fails if the listener has no program
		}
	}
}

// groupKey identifies a SO_REUSEPORT group: sockets among which the kernel selects one for each new
// connection.
type groupKey struct {
	address      netip.AddrPort
	device, user uint32
}

// group holds the inodes of the sockets of a SO_REUSEPORT group, in the order in which the sockets
// began to listen. The target is the Envoy that shall get the connections.
type group struct {
	members []uint32
	old     []uint32 // of all other processes
	fresh   []uint32 // of the target
	isIPv6  bool
}

// sharedGroups returns the groups in which the Envoy target and other processes have sockets.
func sharedGroups(open *openSockets, target int) (map[groupKey]group, error) {
	listeners, err := sockdiag.ListeningSockets()
	groups := map[groupKey]group{}
	for _, l := range listeners {
		key := groupKey{l.Address, l.Device, l.UID}
		if l.Device == noInterface { // the kernel leaves an unplugged socket in its group
			key.device = 0
		}
		g := groups[key]
		g.isIPv6 = l.Address.Addr().Is6()
		g.members = append(g.members, l.Inode)
		if open.owner(l.Inode) == target {
			g.fresh = append(g.fresh, l.Inode)
		} else {
			g.old = append(g.old, l.Inode)
		}
		groups[key] = g
	}
	for key, g := range groups {
		switch {
		case len(g.old) == 0 || len(g.fresh) == 0:
			delete(groups, key)
		case !g.isIPv6:
			slices.Reverse(g.members) // the kernel lists IPv4 sockets in the reverse order
		}
	}
	return groups, err
}

// steer attaches the BPF program. It returns an error unless the target's sockets are the last ones
// of the group. With closing it also unplugs the old sockets of an IPv6 group: the kernel finds a
// group through its oldest socket, and a closing socket leaves the group shortly before the lookup
// table, so the kernel would assign connections to the closing socket itself.
func (g group) steer(open *openSockets, closing bool) error {
	for _, inode := range g.old {
		if open.owner(inode) == 0 {
			return errors.New("a process other than the Envoys listens on the same address")
		}
	}
	for _, inode := range g.members[len(g.old):] {
		if !slices.Contains(g.fresh, inode) {
			return errors.New("another Envoy opened a listener on the same address after the new Envoy")
		}
	}
	err := open.with(g.fresh[0], func(socket int) error {
		return attach(socket, program(len(g.old), len(g.fresh), closing))
	})
	if err != nil || !closing || !g.isIPv6 {
		return err
	}
	for _, inode := range g.old {
		_ = open.with(inode, unplug) // fails for a closed socket, which receives no connections
	}
	return nil
}

// program returns a BPF program that selects a random socket of the new Envoy. A group is an array
// in the kernel to which each socket that begins to listen is appended, so sockets of the new Envoy
// are last. If the program returns an index out of range, the kernel selects a socket by hash
// (net/core/sock_reuseport.c). Therefore the old Envoy, unless it is unplugged, gets all
// connections if the new one dies.
//
// When a socket closes, the kernel moves the last socket of the array to its index. While the old
// Envoy closes its sockets one by one, the indexes from old to fresh, both included, therefore
// remain those of new sockets. With closing the program selects only these, or the index old if
// there are fewer new sockets than old ones.
func program(old, fresh int, closing bool) []unix.SockFilter {
	choice := fresh
	if closing {
		choice = max(fresh-old+1, 1)
	}
	const random = 1<<32 - 0x1000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM, include/uapi/linux/filter.h
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: random},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(choice)},
		{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_K, K: uint32(old)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
}

// attach replaces the program of a socket's group.
func attach(socket int, filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&program)
	if err != nil {
		return fmt.Errorf("attach the BPF program that steers connections: %w", err)
	}
	return nil
}

func detach(socket int) error {
	return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
}
