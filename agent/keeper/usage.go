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
)

// usage is what processes of the keeper's user use, read from /proc.
type usage struct{ proc string }

// memory is the resident size in bytes.
func (u usage) memory(pid int) (uint64, error) {
	content, err := os.ReadFile(filepath.Join(u.proc, strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	fields := bytes.Fields(content) // pages: size resident shared text lib data dt
	if len(fields) < 2 {
		return 0, fmt.Errorf("read the memory of process %d: %q", pid, content)
	}
	pages, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return pages * uint64(os.Getpagesize()), nil
}

// connections are established TCP connections of a process.
type connections struct{ all, downstream uint64 }

// connections counts those of each process, reading the kernel's tables once for all, and adds to listened the ports on which the processes
// listen now. An Envoy that drains has closed its listeners and nobody can ask it, so what tells its clients from its upstreams is the local port:
// an upstream's is one of those that the kernel gives to outgoing connections, and none on which any Envoy has listened.
func (u usage) connections(pids []int, listened map[uint16]bool) (map[int]connections, error) {
	owner := map[string]int{} // inode → process
	for _, pid := range pids {
		descriptors, err := u.descriptors(pid)
		if err != nil {
			continue // it has exited
		}
		for inode := range descriptors {
			owner[inode] = pid
		}
	}
	counts := map[int]connections{}
	if len(owner) == 0 {
		return counts, nil
	}
	const established, listens = "01", "0A" // TCP_ESTABLISHED, TCP_LISTEN
	type connection struct {
		pid  int
		port uint16
	}
	var found []connection
	err := u.sockets(func(s socket) {
		switch pid, ok := owner[string(s.inode)]; {
		case ok && string(s.state) == established:
			found = append(found, connection{pid, s.port()})
		case ok && string(s.state) == listens:
			listened[s.port()] = true
		}
	})
	outgoing := u.outgoingPorts()
	for _, c := range found {
		count := counts[c.pid]
		count.all++
		if listened[c.port] || !outgoing(c.port) {
			count.downstream++
		}
		counts[c.pid] = count
	}
	if err != nil {
		return counts, fmt.Errorf("count connections: %w", err)
	}
	return counts, nil
}

// outgoingPorts tells the ports that the kernel gives to outgoing connections; none where it does not say which.
func (u usage) outgoingPorts() func(uint16) bool {
	var from, to uint16
	content, err := os.ReadFile(filepath.Join(u.proc, "sys", "net", "ipv4", "ip_local_port_range")) // that of IPv6 too
	if err == nil {
		_, err = fmt.Sscan(string(content), &from, &to)
	}
	return func(port uint16) bool { return err == nil && from <= port && port <= to }
}

// descriptors are those of a process's sockets, by inode.
func (u usage) descriptors(pid int) (map[string]int, error) {
	folder := filepath.Join(u.proc, strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("look at the sockets of process %d: %w", pid, err)
	}
	found := map[string]int{}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(folder, entry.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		inode, isSocket := strings.CutPrefix(target, "socket:[")
		number, err := strconv.Atoi(entry.Name())
		if isSocket && err == nil {
			found[strings.TrimSuffix(inode, "]")] = number
		}
	}
	return found, nil
}

// socket is a line of the kernel's tables of TCP sockets; it is valid until the next one is read.
type socket struct {
	local []byte // address:port, in hex
	state []byte // TCP_* of the kernel, two digits in hex
	inode []byte // "0": it has none
}

// port is the local one.
func (s socket) port() uint16 {
	port, _ := strconv.ParseUint(string(s.local[bytes.LastIndexByte(s.local, ':')+1:]), 16, 16)
	return uint16(port)
}

// sockets calls f with each line of the kernel's tables: "sl local remote st tx:rx tr:when retrnsmt uid timeout inode …".
func (u usage) sockets(f func(socket)) error {
	for _, table := range []string{"tcp", "tcp6"} {
		err := u.table(table, f)
		if table == "tcp6" && errors.Is(err, os.ErrNotExist) {
			err = nil // a kernel without IPv6
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (u usage) table(name string, f func(socket)) error {
	file, err := os.Open(filepath.Join(u.proc, "self", "net", name))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	const localColumn, stateColumn, inodeColumn = 1, 3, 9
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) <= inodeColumn {
			continue
		}
		f(socket{local: fields[localColumn], state: fields[stateColumn], inode: fields[inodeColumn]})
	}
	return lines.Err()
}
