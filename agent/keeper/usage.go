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
		folder := filepath.Join(u.proc, strconv.Itoa(pid), "fd")
		descriptors, err := os.ReadDir(folder)
		if err != nil {
			continue // it has exited
		}
		for _, descriptor := range descriptors {
			target, err := os.Readlink(filepath.Join(folder, descriptor.Name()))
			if err != nil {
				continue
			}
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				owner[strings.TrimSuffix(inode, "]")] = pid
			}
		}
	}
	counts := map[int]uint64{}
	if len(owner) == 0 {
		return counts, nil
	}
	err4 := u.established("tcp", owner, counts)
	err6 := u.established("tcp6", owner, counts)
	if errors.Is(err6, os.ErrNotExist) {
		err6 = nil // a kernel without IPv6
	}
	return counts, errors.Join(err4, err6)
}

// established reads a table: "sl local remote st tx:rx tr:when retrnsmt uid timeout inode …", state 01 is ESTABLISHED.
func (u usage) established(table string, owner map[string]int, counts map[int]uint64) error {
	file, err := os.Open(filepath.Join(u.proc, "self", "net", table))
	if err != nil {
		return fmt.Errorf("count connections: %w", err)
	}
	defer func() { _ = file.Close() }()
	const stateColumn, inodeColumn = 3, 9
	for lines := bufio.NewScanner(file); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		fields := bytes.Fields(lines.Bytes())
		if len(fields) <= inodeColumn || string(fields[stateColumn]) != "01" {
			continue
		}
		if pid, ok := owner[string(fields[inodeColumn])]; ok {
			counts[pid]++
		}
	}
}
