package keeper

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Connections that the kernel has taken, and Envoy not yet, are reset when Envoy closes its listeners. So before it does, no new
// ones are let in: what comes then is not answered by the kernel (a client tries again after a second and is refused), what is
// there is taken by Envoy.
const (
	doorsAtLeast = 100 * time.Millisecond // handshakes that have begun end within this
	doorsAtMost  = time.Second
	doorsPoll    = 10 * time.Millisecond
)

// refuseNew is a socket filter (BPF) that drops what asks for a new connection, SYN without ACK, and nothing else. A TCP socket's
// filter sees the segment from its header on; byte 13 holds the flags.
var refuseNew = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: 0x02},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
}

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
		queued, err := system.queued(waiting)
		if err != nil {
			return errors.Join(append(failures, err)...)
		}
		if queued == 0 && time.Since(began) >= doorsAtLeast {
			break
		}
		time.Sleep(doorsPoll)
	}
	return errors.Join(failures...)
}

// refuseConnections filters the listening TCP sockets of a process, and adds their inodes.
func (u usage) refuseConnections(pid int, inodes map[string]bool) error {
	listening, err := u.listening()
	if err != nil {
		return err
	}
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(handle) }()
	folder := filepath.Join(u.proc, strconv.Itoa(pid), "fd")
	descriptors, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("look at the sockets of process %d: %w", pid, err)
	}
	var failures []error
	for _, descriptor := range descriptors {
		target, err := os.Readlink(filepath.Join(folder, descriptor.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		inode := strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")
		if _, listens := listening[inode]; !listens || inodes[inode] {
			continue
		}
		number, err := strconv.Atoi(descriptor.Name())
		if err != nil {
			continue
		}
		inodes[inode] = true
		if err := filterSocket(handle, number); err != nil {
			failures = append(failures, fmt.Errorf("close the listeners of process %d to new connections: %w", pid, err))
		}
	}
	return errors.Join(failures...)
}

// filterSocket sets the filter on another process's socket, through a descriptor of our own.
func filterSocket(process, number int) error {
	socket, err := unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return fmt.Errorf("share descriptor %d: %w", number, err)
	}
	defer func() { _ = unix.Close(socket) }()
	program := unix.SockFprog{Len: uint16(len(refuseNew)), Filter: &refuseNew[0]}
	if err := unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		// The next best: the kernel takes at most one more connection before Envoy takes it.
		return errors.Join(fmt.Errorf("set the filter of descriptor %d: %w", number, err), unix.Listen(socket, 0))
	}
	return nil
}

// queued is how many connections wait to be accepted on sockets.
func (u usage) queued(inodes map[string]bool) (uint64, error) {
	listening, err := u.listening()
	if err != nil {
		return 0, err
	}
	var total uint64
	for inode := range inodes {
		total += listening[inode]
	}
	return total, nil
}

// listening are the listening TCP sockets: inode → connections that wait to be accepted.
func (u usage) listening() (map[string]uint64, error) {
	found := map[string]uint64{}
	err4 := u.readListening("tcp", found)
	err6 := u.readListening("tcp6", found)
	if errors.Is(err6, os.ErrNotExist) {
		err6 = nil // a kernel without IPv6
	}
	return found, errors.Join(err4, err6)
}

// readListening reads a table (see established); state 0A is LISTEN, and rx then the length of the accept queue, in hex.
func (u usage) readListening(table string, into map[string]uint64) error {
	file, err := os.Open(filepath.Join(u.proc, "self", "net", table))
	if err != nil {
		return fmt.Errorf("look at listening sockets: %w", err)
	}
	defer func() { _ = file.Close() }()
	const stateColumn, queueColumn, inodeColumn = 3, 4, 9
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) <= inodeColumn || string(fields[stateColumn]) != "0A" {
			continue
		}
		_, rx, _ := bytes.Cut(fields[queueColumn], []byte(":"))
		waiting, err := strconv.ParseUint(string(rx), 16, 64)
		if err != nil {
			return fmt.Errorf("look at listening sockets: queue %q: %w", fields[queueColumn], err)
		}
		into[string(fields[inodeColumn])] = waiting
	}
	return lines.Err()
}
