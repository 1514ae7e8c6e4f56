package keeper

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// Where two Envoys listen on the same ports (SO_REUSEPORT), the kernel deals new connections out to both, and resets those that the
// old one has not accepted when it closes its listeners. So the old one gets none any more before: a program on the group of sockets
// says which of them a connection goes to (SO_ATTACH_REUSEPORT_CBPF, which asks for no privilege).
//
// That is not all for IPv6. The kernel asks the group of the first socket that it meets, which is the youngest for IPv4 and the oldest for
// IPv6, and a socket that closes leaves its group a moment before it leaves the kernel's table (inet_unhash): who comes in that moment
// gets that socket itself, and is reset. Measured: one in some 10,000 closes under load. So those that are about to close are unplugged
// too, and the kernel passes them over.

// steering is an Envoy that gets no new connection.
type steering struct {
	from    string
	closing *time.Timer // until it is about to close its listeners
}

// closingLead is how long before listeners close the programs become those for that.
const closingLead = 200 * time.Millisecond

// steer has every new connection of the ports that two Envoys share go to one of them; the other one will close its listeners after a
// time. What cannot be had is told; there nothing is changed.
func (s *server) steer(from, to string, closes time.Duration) error {
	s.mu.Lock()
	if s.steered != nil {
		s.steered.closing.Stop()
	}
	s.steered = &steering{from, time.AfterFunc(max(closes-closingLead, 0), func() {
		if err := s.divert(from, to, true); err != nil && !IsCode(err, CodeNotFound) { // one of them has gone meanwhile
			s.complain("%v", err)
		}
	})}
	s.mu.Unlock()
	return s.divert(from, to, closes <= closingLead)
}

// divert has programs choose for the ports that two Envoys share.
func (s *server) divert(from, to string, closing bool) error {
	s.attaching.Lock()
	defer s.attaching.Unlock()
	s.mu.Lock()
	target, others, found := 0, []int(nil), false
	for _, c := range s.find((*child).lives) {
		switch c.process.ID {
		case to:
			target = c.process.PID
		default:
			others = append(others, c.process.PID)
			found = found || c.process.ID == from
		}
	}
	if target == 0 || !found {
		s.mu.Unlock()
		return refuse(CodeNotFound, "connections cannot be steered from %q to %q: they are not two Envoys that live", from, to)
	}
	s.mu.Unlock()

	system := usage{proc: "/proc"}
	processes, err := openProcesses(system, append(others, target))
	defer processes.close()
	if err != nil {
		return err
	}
	before, err := groups(processes, target)
	if err != nil {
		return err
	}
	var failures []error
	for key, group := range before {
		if err := group.steer(processes, closing); err != nil {
			failures = append(failures, fmt.Errorf("steer connections to %s: %w", key.address, err))
			delete(before, key)
		}
	}
	// Whoever opened or closed a listener meanwhile has changed what the program's numbers mean.
	now, err := groups(processes, target)
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	for key, group := range before {
		if !slices.Equal(group.members, now[key].members) {
			_ = processes.with(group.fresh[0], detach)
			failures = append(failures, fmt.Errorf("steer connections to %s: its listeners changed meanwhile", key.address))
			continue
		}
		if closing && key.device == 0 && key.address.Addr().Is6() {
			for _, inode := range group.old {
				_ = processes.with(inode, unplug) // one that is closed by now gets nothing anyway
			}
		}
	}
	return errors.Join(failures...)
}

// release lets the kernel choose among all listeners again: who was steered away from is gone.
func (s *server) release() {
	s.attaching.Lock()
	defer s.attaching.Unlock()
	s.mu.Lock()
	var pids []int
	if s.steered == nil { // else somebody else is steered away from by now
		for _, c := range s.find((*child).lives) {
			pids = append(pids, c.process.PID)
		}
	}
	s.mu.Unlock()
	system := usage{proc: "/proc"}
	processes, err := openProcesses(system, pids)
	defer processes.close()
	if err != nil {
		return // another one exits too: nobody is left that is steered to, or the kernel goes on as it does
	}
	listeners, err := sockdiag.Listening()
	if err != nil {
		s.complain("let go of steered connections: %v", err)
		return
	}
	for _, l := range listeners {
		inode := inodeOf(l)
		if _, ours := processes.owner[inode]; ours {
			_ = processes.with(inode, detach) // one that has no program says so
		}
	}
}

// group is what the kernel chooses a listener from.
type group struct {
	members []string // inodes, in the order of the kernel's list
	old     []string // those of other Envoys
	fresh   []string // and of the one that gets the connections
	foreign bool     // some are nobody's of ours
	sorted  bool     // all of the fresh ones were made after all others
}

// groupKey is what the sockets of a group have in common, but for traits.
type groupKey struct {
	address      netip.AddrPort
	device, user uint32
}

// inodeOf is a socket's inode as /proc writes it.
func inodeOf(s sockdiag.Socket) string { return strconv.FormatUint(uint64(s.Inode), 10) }

// groups are those that an Envoy, target, has in common with others.
func groups(processes *processes, target int) (map[groupKey]group, error) {
	listeners, err := sockdiag.Listening()
	if err != nil {
		return nil, err
	}
	found := map[groupKey]group{}
	for _, l := range listeners {
		key, inode := groupKey{l.Address, l.Device, l.UID}, inodeOf(l)
		if l.Device == noInterface { // unplugged since: it stays in its group
			key.device = 0
		}
		g, again := found[key]
		if !again {
			g.sorted = true
		}
		isIPv6 := l.Address.Addr().Is6()
		owner, ours := processes.owner[inode]
		if ours && owner.pid == target {
			g.sorted = g.sorted && (isIPv6 || len(g.old) == 0)
			g.fresh = append(g.fresh, inode)
		} else {
			g.sorted = g.sorted && (!isIPv6 || len(g.fresh) == 0)
			g.old = append(g.old, inode)
			g.foreign = g.foreign || !ours
		}
		g.members = append(g.members, inode)
		found[key] = g
	}
	maps.DeleteFunc(found, func(_ groupKey, g group) bool { return len(g.old) == 0 || len(g.fresh) == 0 })
	return found, nil
}

// steer attaches the program, if it is certain which of the group's sockets are whose.
func (g group) steer(processes *processes, closing bool) error {
	switch {
	case g.foreign:
		return errors.New("a process that is none of ours listens there too")
	case !g.sorted:
		return errors.New("a listener of another Envoy was made after those of the one that is to get them")
	}
	var first traits
	for i, inode := range g.members {
		var its traits
		if err := processes.with(inode, func(socket int) (err error) { its, err = traitsOf(socket); return err }); err != nil {
			return err
		}
		switch {
		case i == 0:
			first = its
		case its != first:
			return errors.New("the listeners there differ in IPV6_V6ONLY or SO_REUSEPORT")
		}
	}
	return processes.with(g.fresh[0], func(socket int) error { return attach(socket, program(len(g.old), len(g.fresh), closing)) })
}

// program chooses by chance among the sockets of the new Envoy. The kernel keeps a group as an array to which each socket is added as
// it begins to listen, so the new ones are the last; a number that there is none of makes it choose by hash among all, as without a
// program (net/core/sock_reuseport.c). So nothing is lost when the new Envoy dies, unless the old one has been unplugged.
//
// When a socket closes the last one takes its place. While the old Envoy closes its own one by one, a number from the end may be one
// that there is none of any more, and the kernel might choose an old one. Those from the first new one on, up to as many as there are
// more new than old ones, stay new ones until the last of the old is closed: at least one, unless there are fewer new than old.
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

// attach has a program choose in the group of a socket; it takes the place of the one before.
func attach(socket int, filter []unix.SockFilter) error {
	attached := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &attached); err != nil {
		return fmt.Errorf("attach a program: %w", err)
	}
	return nil
}

func detach(socket int) error {
	return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
}

// traits are what else makes the kernel keep sockets in groups apart.
type traits struct{ onlyIPv6, shared int }

func traitsOf(socket int) (t traits, err error) {
	if t.shared, err = unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT); err != nil {
		return t, fmt.Errorf("ask for SO_REUSEPORT: %w", err)
	}
	if t.onlyIPv6, err = unix.GetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err != nil {
		t.onlyIPv6 = -1 // IPv4
	}
	return t, nil
}
