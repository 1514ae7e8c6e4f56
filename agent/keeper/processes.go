package keeper

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// processes are Envoys whose sockets are at hand.
type processes struct {
	handles []int            // pidfds
	owner   map[string]owner // by inode
	sharers map[string][]int // all that have one, by inode
}

// owner is who has a socket, and as what.
type owner struct{ pid, handle, descriptor int }

// openProcesses gets at the sockets of processes; those that several have are the last one's. What it returns is to be closed, whatever
// the error.
func openProcesses(system usage, pids []int) (*processes, error) {
	p := &processes{owner: map[string]owner{}, sharers: map[string][]int{}}
	for _, pid := range pids {
		handle, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return p, fmt.Errorf("open process %d: %w", pid, err)
		}
		if err := p.add(system, pid, handle); err != nil {
			return p, err
		}
	}
	return p, nil
}

// add adds those of a process with a handle; -1: it has none, and its sockets can be looked at only.
func (p *processes) add(system usage, pid, handle int) error {
	if handle >= 0 {
		p.handles = append(p.handles, handle)
	}
	descriptors, err := system.descriptors(pid)
	if err != nil {
		return err
	}
	for inode, descriptor := range descriptors {
		p.owner[inode] = owner{pid, handle, descriptor}
		p.sharers[inode] = append(p.sharers[inode], pid)
	}
	return nil
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
