package keeper

import (
	"fmt"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// processes are Envoys whose sockets are at hand.
type processes struct {
	handles []int            // pidfds
	owner   map[string]owner // by inode
}

// owner is who has a socket, and as what.
type owner struct{ pid, handle, descriptor int }

// openProcesses gets at the sockets of processes; those that several have are the last one's. What it returns is to be closed, whatever
// the error.
func openProcesses(system usage, pids []int) (*processes, error) {
	p := &processes{owner: map[string]owner{}}
	for _, pid := range pids {
		handle, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return p, fmt.Errorf("open process %d: %w", pid, err)
		}
		p.handles = append(p.handles, handle)
		descriptors, err := system.descriptors(pid)
		if err != nil {
			return p, err
		}
		for inode, descriptor := range descriptors {
			p.owner[inode] = owner{pid, handle, descriptor}
		}
	}
	return p, nil
}

func (p *processes) close() {
	for _, handle := range p.handles {
		_ = unix.Close(handle)
	}
}

// with does something to a socket through a descriptor of our own.
func (p *processes) with(inode string, do func(socket int) error) error {
	owner, known := p.owner[inode]
	if !known {
		return fmt.Errorf("socket %s is of no process of ours", inode)
	}
	socket, err := unix.PidfdGetfd(owner.handle, owner.descriptor, 0)
	if err != nil {
		return fmt.Errorf("share descriptor %d of process %d: %w", owner.descriptor, owner.pid, err)
	}
	defer func() { _ = unix.Close(socket) }()
	return do(socket)
}

// ports are those on which the processes listen.
func (p *processes) ports(listeners []sockdiag.Socket) map[uint16]bool {
	found := map[uint16]bool{}
	for _, l := range listeners {
		if _, ours := p.owner[inodeOf(l)]; ours {
			found[l.Address.Port()] = true
		}
	}
	return found
}
