package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Connections that the kernel has taken, and Envoy not yet, are reset when Envoy closes its listeners. So before it does, no new
// ones are let in: whoever comes then is refused by the kernel, as after the close; what is there is taken by Envoy.
const (
	doorsAtLeast = 20 * time.Millisecond // what the kernel works on in this moment is in its tables then
	doorsAtMost  = time.Second           // a handshake whose client is gone lasts longer
	doorsPoll    = 10 * time.Millisecond
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
	for len(waiting) > 0 && time.Since(began) < doorsAtMost {
		sockets, err := system.listening()
		if err != nil {
			return errors.Join(append(failures, err)...)
		}
		if sockets.coming(waiting) == 0 && time.Since(began) >= doorsAtLeast {
			break
		}
		time.Sleep(doorsPoll)
	}
	return errors.Join(failures...)
}

// refuseConnections lets no new connection in to the listening TCP sockets of a process, and adds their inodes.
func (u usage) refuseConnections(pid int, inodes map[string]bool) error {
	sockets, err := u.listening()
	if err != nil {
		return err
	}
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(handle) }()
	descriptors, err := u.descriptors(pid)
	if err != nil {
		return err
	}
	var failures []error
	for inode, number := range descriptors {
		if _, listens := sockets.queues[inode]; !listens || inodes[inode] {
			continue
		}
		inodes[inode] = true
		if err := unplug(handle, number); err != nil {
			failures = append(failures, fmt.Errorf("close the listeners of process %d to new connections: %w", pid, err))
		}
	}
	return errors.Join(failures...)
}

// unplug binds another process's socket to no interface, through a descriptor of our own, unless it is already.
func unplug(process, number int) error {
	socket, err := unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return fmt.Errorf("share descriptor %d: %w", number, err)
	}
	defer func() { _ = unix.Close(socket) }()
	if bound, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err == nil && bound == noInterface {
		return nil
	}
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, noInterface); err != nil {
		// It is bound to one by its configuration. The next best: the kernel takes at most one more before Envoy takes it.
		return errors.Join(fmt.Errorf("unplug descriptor %d: %w", number, err), unix.Listen(socket, 0))
	}
	return nil
}

// listeners are the listening TCP sockets.
type listeners struct {
	queues     map[string]queue  // by inode
	handshakes map[string]uint64 // that have begun, by port (hex)
}

// queue is that of one listening socket.
type queue struct {
	port   string // hex
	length uint64 // connections that wait to be accepted
}

// coming is how many connections wait to be accepted on sockets, or will once their handshake is done.
func (l listeners) coming(inodes map[string]bool) uint64 {
	var total uint64
	ports := map[string]bool{}
	for inode := range inodes {
		if queue, open := l.queues[inode]; open {
			total += queue.length
			ports[queue.port] = true
		}
	}
	for port := range ports {
		total += l.handshakes[port]
	}
	return total
}

// listening reads the kernel's tables. The second half of a listening socket's queue is the length of its accept queue; a handshake has
// the local address of its listener, and no inode.
func (u usage) listening() (listeners, error) {
	const handshake, listen = "03", "0A" // SYN_RECV, LISTEN
	found := listeners{queues: map[string]queue{}, handshakes: map[string]uint64{}}
	err := u.sockets(func(s socket) error {
		switch string(s.state) {
		case handshake:
			found.handshakes[string(s.port)]++
		case listen:
			_, rx, _ := bytes.Cut(s.queue, []byte(":"))
			length, err := strconv.ParseUint(string(rx), 16, 64)
			if err != nil {
				return fmt.Errorf("queue %q: %w", s.queue, err)
			}
			found.queues[string(s.inode)] = queue{port: string(s.port), length: length}
		}
		return nil
	})
	if err != nil {
		return found, fmt.Errorf("look at listening sockets: %w", err)
	}
	return found, nil
}
