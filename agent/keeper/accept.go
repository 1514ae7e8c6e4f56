package keeper

import (
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// Envoy resets the connections that it has not accepted when it closes its listeners. So new ones
// are refused before, until Envoy has accepted those that wait. See docs/decisions/0007.
const (
	acceptWait = time.Second // a handshake whose client has gone lasts longer
	acceptPoll = 10 * time.Millisecond

	// acceptQuiet is how often in a row nothing may wait: a handshake that ends between the
	// kernel's list of listeners and that of handshakes is in neither.
	acceptQuiet = 3
)

// noInterface is the index of a network interface that does not exist. A listening socket that is
// bound to it gets no new connection; handshakes and connections that wait keep the interface they
// began with. Binding needs no privilege (Linux 5.7).
const noInterface = math.MaxInt32

// stopAccepting has the kernel refuse new TCP connections to all living Envoys, and returns once
// these have accepted those that wait, or after acceptWait. It cannot be undone.
func (s *server) stopAccepting() error {
	open, err := findSockets(s.livingPIDs())
	defer open.close()
	failures := []error{err}
	sockets, err := sockdiag.ListeningSockets()
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	listeners := map[uint32]uint16{}
	for _, l := range sockets {
		if open.owner(l.Inode) == 0 {
			continue
		}
		listeners[l.Inode] = l.Address.Port()
		if err := open.with(l.Inode, unplug); err != nil {
			failures = append(failures, fmt.Errorf("refuse connections to %s: %w", l.Address, err))
		}
	}
	began := time.Now()
	for quiet := 0; len(listeners) > 0 && quiet < acceptQuiet && time.Since(began) < acceptWait; {
		quiet++
		if n, err := unaccepted(listeners); err != nil || n > 0 {
			quiet = 0
		}
		time.Sleep(acceptPoll)
	}
	return errors.Join(failures...)
}

// unplug binds a socket to no interface, unless it already is.
func unplug(socket int) error {
	bound, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
	if err == nil && bound == noInterface {
		return nil
	}
	err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, noInterface)
	if err != nil {
		// Its configuration binds it to an interface. Let the kernel queue one connection at most.
		err = fmt.Errorf("bind to no interface: %w", err)
		return errors.Join(err, unix.Listen(socket, 0))
	}
	return nil
}

// unaccepted counts the connections that wait to be accepted by listeners, identified by inode and
// port, and the handshakes that will.
func unaccepted(listeners map[uint32]uint16) (int, error) {
	ports := map[uint16]bool{}
	for _, port := range listeners {
		ports[port] = true
	}
	total := 0
	err := sockdiag.Each(sockdiag.TCP, func(s sockdiag.Socket) {
		_, ours := listeners[s.Inode]
		switch {
		case s.State == sockdiag.Listen && ours:
			total += int(s.Waiting)
		case s.State == sockdiag.SynReceived && ports[s.Address.Port()]:
			total++
		}
	}, sockdiag.Listen, sockdiag.SynReceived)
	return total, err
}
