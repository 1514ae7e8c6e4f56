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

// connections counts the established TCP connections of each process, reading the kernel's tables once for all.
func (u usage) connections(pids []int) (map[int]uint64, error) {
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
	counts := map[int]uint64{}
	if len(owner) == 0 {
		return counts, nil
	}
	const established = "01" // TCP_ESTABLISHED
	err := u.sockets(func(s socket) {
		if pid, ok := owner[string(s.inode)]; ok && string(s.state) == established {
			counts[pid]++
		}
	})
	if err != nil {
		return counts, fmt.Errorf("count connections: %w", err)
	}
	return counts, nil
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
	state []byte // TCP_* of the kernel, two digits in hex
	inode []byte // "0": it has none
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
	const stateColumn, inodeColumn = 3, 9
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) <= inodeColumn {
			continue
		}
		f(socket{state: fields[stateColumn], inode: fields[inodeColumn]})
	}
	return lines.Err()
}
