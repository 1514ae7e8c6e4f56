package keeper

import (
	"bytes"
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
