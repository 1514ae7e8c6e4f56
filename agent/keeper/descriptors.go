package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openSockets holds the open sockets of some processes, by inode. A socket that was passed on in a
// hot restart has several holders, in the order of the pids passed to findSockets.
type openSockets struct {
	holders map[uint32][]holder
	pidfds  []int
}

// holder is a process that has a socket open.
type holder struct{ pid, pidfd, descriptor int }

// findSockets returns the sockets of those pids that still live. On an error the result is
// incomplete. The caller must close the result in any case.
func findSockets(pids []int) (*openSockets, error) {
	open := &openSockets{holders: map[uint32][]holder{}}
	var failures []error
	for _, pid := range pids {
		err := open.add(pid)
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, fmt.Errorf("find the sockets of process %d: %w", pid, err))
		}
	}
	return open, errors.Join(failures...)
}

func (o *openSockets) add(pid int) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open a pidfd: %w", err)
	}
	o.pidfds = append(o.pidfds, pidfd)
	folder := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(folder, entry.Name()))
		if err != nil {
			continue // the descriptor was closed meanwhile
		}
		number, isSocket := strings.CutPrefix(target, "socket:[")
		inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32)
		if descriptor, invalid := strconv.Atoi(entry.Name()); isSocket && err == nil &&
			invalid == nil {
			o.holders[uint32(inode)] = append(o.holders[uint32(inode)],
				holder{pid, pidfd, descriptor})
		}
	}
	return nil
}

func (o *openSockets) close() {
	for _, pidfd := range o.pidfds {
		_ = unix.Close(pidfd)
	}
}

// owner returns the last process that holds a socket, 0 if none does.
func (o *openSockets) owner(inode uint32) int {
	if holders := o.holders[inode]; len(holders) > 0 {
		return holders[len(holders)-1].pid
	}
	return 0
}

var errClosedMeanwhile = errors.New("the socket was closed meanwhile")

// with calls do with a descriptor that duplicates the socket with the inode.
func (o *openSockets) with(inode uint32, do func(descriptor int) error) error {
	holders := o.holders[inode]
	if len(holders) == 0 {
		return fmt.Errorf("no process has socket %d", inode)
	}
	last := holders[len(holders)-1]
	descriptor, err := unix.PidfdGetfd(last.pidfd, last.descriptor, 0)
	if err != nil {
		return fmt.Errorf("duplicate descriptor %d of process %d: %w", last.descriptor, last.pid,
			err)
	}
	defer func() { _ = unix.Close(descriptor) }()
	var status unix.Stat_t
	if err := unix.Fstat(descriptor, &status); err != nil {
		return err
	}
	if status.Ino != uint64(inode) {
		return errClosedMeanwhile
	}
	return do(descriptor)
}

// option reports whether a socket has an option of SOL_SOCKET set; known is false if the option
// cannot be read.
func (o *openSockets) option(inode uint32, option int) (set, known bool) {
	err := o.with(inode, func(descriptor int) error {
		value, err := unix.GetsockoptInt(descriptor, unix.SOL_SOCKET, option)
		set = value != 0
		return err
	})
	return set, err == nil
}
