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

// Where two Envoys listen on the same ports (SO_REUSEPORT), the kernel distributes new connections
// to both, and resets those that the older one has not accepted when it closes its listeners. A
// program attached to each group of sockets (SO_ATTACH_REUSEPORT_CBPF, no privilege) selects only
// sockets of the newer one. See docs/decisions/0006.

// steering directs new connections away from an Envoy.
type steering struct {
	from    string
	closing *time.Timer // fires closingLead before that Envoy closes its listeners
}

// closingLead is how long before an Envoy closes its listeners the programs are replaced by those
// for closing (see program).
const closingLead = 200 * time.Millisecond

// steer directs the new connections of the ports that two Envoys share to one of them, to. closes
// is the time until from closes its listeners. Ports named in the error are unchanged.
func (s *server) steer(from, to string, closes time.Duration) error {
	s.mu.Lock()
	if s.steered != nil {
		s.steered.closing.Stop()
	}
	s.steered = &steering{from, time.AfterFunc(max(closes-closingLead, 0), func() {
		err := s.divert(from, to, true)
		if err != nil && !HasCode(err, CodeNotFound) { // not found: one has exited
			s.logf("%v", err)
		}
	})}
	s.mu.Unlock()
	return s.divert(from, to, closes <= closingLead)
}

// divert attaches programs to the groups of sockets that two Envoys share.
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
			failures = append(failures, fmt.Errorf("steer connections to %s: %w", key.address, err))
		}
	}
	return errors.Join(failures...)
}

// release detaches the programs after the Envoy that connections were steered away from has exited.
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
			_ = open.with(l.Inode, detach) // fails for one without a program
		}
	}
}

// groupKey identifies the sockets among which the kernel selects one for a connection.
type groupKey struct {
	address      netip.AddrPort
	device, user uint32
}

// group is the sockets of a key, as inodes in the order in which they began to listen.
type group struct {
	members []uint32
	old     []uint32 // of other processes than the target
	fresh   []uint32 // of the target
	isIPv6  bool
}

// sharedGroups returns the groups that an Envoy, target, shares with other processes.
func sharedGroups(open *openSockets, target int) (map[groupKey]group, error) {
	listeners, err := sockdiag.ListeningSockets()
	groups := map[groupKey]group{}
	for _, l := range listeners {
		key := groupKey{l.Address, l.Device, l.UID}
		if l.Device == noInterface { // unplugged: it stays in its group
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
			slices.Reverse(g.members) // see sockdiag.ListeningSockets
		}
	}
	return groups, err
}

// steer attaches the program if the target's sockets are the last of the group. Before the
// listeners close it also unplugs the old sockets of IPv6: the kernel asks the group of the oldest
// socket, which leaves its group slightly before the lookup table and would get connections itself.
func (g group) steer(open *openSockets, closing bool) error {
	for _, inode := range g.old {
		if open.owner(inode) == 0 {
			return errors.New("another process listens there too")
		}
	}
	for _, inode := range g.members[len(g.old):] {
		if !slices.Contains(g.fresh, inode) {
			return errors.New("a listener of another Envoy is younger than the new ones")
		}
	}
	err := open.with(g.fresh[0], func(socket int) error {
		return attach(socket, program(len(g.old), len(g.fresh), closing))
	})
	if err != nil || !closing || !g.isIPv6 {
		return err
	}
	for _, inode := range g.old {
		_ = open.with(inode, unplug) // one that was closed gets no connection anyway
	}
	return nil
}

// program selects a random socket of the new Envoy. The kernel keeps a group as an array to which
// it appends each socket that begins to listen, so the new ones are last. An index out of range
// makes it select by hash among all (net/core/sock_reuseport.c), so the death of the new Envoy
// loses nothing unless the old one is unplugged.
//
// When a socket closes, the last one takes its place. While the old Envoy closes its sockets one by
// one, only the indexes from the first new one, as many as there are more new than old ones, stay
// those of new sockets; at least one does, unless there are fewer new than old ones.
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
		return fmt.Errorf("attach a program: %w", err)
	}
	return nil
}

func detach(socket int) error {
	return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
}
