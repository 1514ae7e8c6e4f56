package keeper

import (
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// When Envoy closes its listeners, the kernel resets the connections that Envoy has not accepted.
// To avoid that, the keeper first makes the kernel refuse new connections, and waits until Envoy
// has accepted those in the queue. See docs/decisions/0007.
const (
	// maximum wait; not longer, because the kernel retains the handshake of a client that is gone
	// for many seconds
	acceptWait = time.Second
	acceptPoll = 10 * time.Millisecond

	// acceptQuiet is the number of consecutive polls that must find no waiting connection. A single
	// poll lists first the accept queues and then the handshakes, and can miss a connection that
	// moves from one to the other in between.
	acceptQuiet = 3
)

// noInterface is the index of a network interface that does not exist. A listening socket that is
// bound to it receives no new connection; handshakes and connections in its queue are not affected.
// Binding needs no privilege (Linux 5.7).
const noInterface = math.MaxInt32

// stopAccepting makes the kernel refuse new TCP connections to all living Envoys, and returns once
// these have accepted the connections in their queues, or after acceptWait. It cannot be undone.
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
			failures = append(failures, fmt.Errorf("stop new connections to %s: %w",
				l.Address, err))
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

// unplug binds a listening socket to noInterface, so that it receives no new connections.
func unplug(socket int) error {
	bound, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
	if err == nil && bound == noInterface {
		return nil
	}
	err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, noInterface)
	if err != nil {
		// Binding fails if Envoy's configuration has bound the socket to an interface. Limit the
		// queue to one connection instead.
		err = fmt.Errorf("set SO_BINDTOIFINDEX to an unused interface index: %w", err)
		return errors.Join(err, unix.Listen(socket, 0))
	}
	return nil
}

// unaccepted returns the number of connections that wait to be accepted by listeners, plus the
// number of handshakes in progress on their ports. listeners maps inodes of sockets to ports.
func unaccepted(listeners map[uint32]uint16) (int, error) {
	ports := map[uint16]bool{}
	for _, port := range listeners {
		ports[port] = true
	}
	total := 0
	err := sockdiag.EachSocket(sockdiag.TCP, func(s sockdiag.Socket) {
		_, ours := listeners[s.Inode]
		switch {
		case s.State == sockdiag.Listen && ours:
			total += int(s.ReceiveQueue)
		case s.State == sockdiag.SynReceived && ports[s.Address.Port()]:
			total++
		}
	}, sockdiag.Listen, sockdiag.SynReceived)
	return total, err
}
