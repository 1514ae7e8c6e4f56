package keeper

import (
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// Connections that the kernel has taken, and Envoy not yet, are reset when Envoy closes its listeners. So before it does, no new
// ones are let in: whoever comes then is refused by the kernel, as after the close; what is there is taken by Envoy.
const (
	doorsAtMost = time.Second // a handshake whose client is gone lasts longer
	doorsPoll   = 10 * time.Millisecond

	// doorsQuiet is how often in a row nothing may wait: a handshake that is done between the kernel's list of listeners and that of handshakes
	// is in neither, and what the kernel works on in the moment is in its tables after the first pause.
	doorsQuiet = 3
)

// noInterface is the index of a network interface that does not exist: the kernel counts them up from 1. A listening socket that
// is bound to it gets no new connection. Handshakes that have begun and connections that wait keep the interface they began with,
// so they are not touched. The kernel allows it to everyone for a socket that is bound to none (Linux 5.7), whereas a filter on a
// TCP socket (SO_ATTACH_FILTER) asks for CAP_NET_ADMIN since 2026, in stable kernels too.
const noInterface = math.MaxInt32

// closeDoors lets no new TCP connection in to any living Envoy, and returns once they have taken those that wait, or after
// doorsAtMost. There is no way back: it is for Envoys that are about to close their listeners for good.
func (s *server) closeDoors() error {
	system := usage{proc: "/proc"}
	var failures []error
	waiting := map[string]bool{} // inodes
	for _, p := range s.list() {
		if p.Exit != nil {
			continue
		}
		if err := system.refuseConnections(p.PID, waiting); err != nil {
			failures = append(failures, err)
		}
	}
	began := time.Now()
	for quiet := 0; len(waiting) > 0 && quiet < doorsQuiet && time.Since(began) < doorsAtMost; time.Sleep(doorsPoll) {
		sockets, err := sockdiag.Coming()
		switch {
		case err != nil: // then nothing tells what waits: all the time that is needed at most
		case coming(sockets, waiting) == 0:
			quiet++
		default:
			quiet = 0
		}
	}
	return errors.Join(failures...)
}

// refuseConnections lets no new connection in to the listening TCP sockets of a process, and adds their inodes.
func (u usage) refuseConnections(pid int, inodes map[string]bool) error {
	owned, err := openProcesses(u, []int{pid})
	defer owned.close()
	if err != nil {
		return err
	}
	var failures []error
	for _, inode := range owned.listeners() {
		if inodes[inode] {
			continue
		}
		inodes[inode] = true
		if err := owned.with(inode, unplug); err != nil {
			failures = append(failures, fmt.Errorf("close the listeners of process %d to new connections: %w", pid, err))
		}
	}
	return errors.Join(failures...)
}

// listeners are the sockets, by inode, that take TCP connections. Where the kernel cannot list all that listen, the sockets are asked.
func (p *processes) listeners() []string {
	var found []string
	if all, err := sockdiag.Listening(); err == nil {
		for _, s := range all {
			if _, ours := p.owner[inodeOf(s)]; ours {
				found = append(found, inodeOf(s))
			}
		}
		return found
	}
	return p.askedListeners()
}

func (p *processes) askedListeners() (found []string) {
	for inode := range p.owner {
		listens := false
		_ = p.with(inode, func(socket int) error { // one that is closed by now does not listen
			listens = isTCPListener(socket)
			return nil
		})
		if listens {
			found = append(found, inode)
		}
	}
	return found
}

// isTCPListener asks a socket whether it takes TCP connections.
func isTCPListener(socket int) bool {
	protocol, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP {
		return false
	}
	listens, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && listens == 1
}

// unplug binds a socket to no interface, unless it is already.
func unplug(socket int) error {
	if bound, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err == nil && bound == noInterface {
		return nil
	}
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, noInterface); err != nil {
		// It is bound to one by its configuration. The next best: the kernel takes at most one more before Envoy takes it.
		return errors.Join(fmt.Errorf("unplug a listener: %w", err), unix.Listen(socket, 0))
	}
	return nil
}

// coming is how many connections wait to be accepted on listening sockets, given by inode, or will once their handshake is done.
func coming(sockets []sockdiag.Socket, inodes map[string]bool) int {
	ports, total := map[uint16]bool{}, 0
	for _, s := range sockets {
		if !s.Handshake && inodes[inodeOf(s)] {
			total += int(s.Waiting)
			ports[s.Address.Port()] = true
		}
	}
	for _, s := range sockets {
		if s.Handshake && ports[s.Address.Port()] {
			total++
		}
	}
	return total
}
