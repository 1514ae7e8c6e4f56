package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/keeper"
)

// removeSharedMemory removes the shared memory of the Envoys of a dead keeper. Its files are numbered by the base id that the
// keeper has written down (Envoy's hot restart; /dev/shm/envoy_shared_memory_<base-id*10>), one for each lineage. Others on
// the host have files of the same kind: what another user owns, or a process still has mapped, stays.
func (c *cleaner) removeSharedMemory() error {
	record := filepath.Join(c.keeper, "base-id")
	content, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the base id: %w", err)
	}
	baseID, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 32)
	if err != nil || baseID == 0 {
		c.tell("%s holds no base id: shared memory was not touched", record)
		return nil //nolint:nilerr // it is told; the rest can be cleaned
	}
	owner, err := ownerOf(record)
	if err != nil {
		return fmt.Errorf("look who the keeper was: %w", err)
	}
	info := keeper.Info{BaseID: uint32(baseID)}
	var failed []error
	for lineage := range keeper.Lineages {
		path := filepath.Join(c.sharedMemory, fmt.Sprintf("envoy_shared_memory_%d", uint64(info.BaseIDOf(lineage))*10))
		if user, err := ownerOf(path); err != nil || user != owner || c.mapped(path) {
			continue
		}
		failed = append(failed, c.remove(path))
	}
	return errors.Join(failed...)
}

// ownerOf is the user a file belongs to.
func ownerOf(path string) (uint32, error) {
	var status unix.Stat_t
	err := unix.Lstat(path, &status)
	return status.Uid, err
}

// mapped is true if a living process has the file in its memory.
func (c *cleaner) mapped(path string) bool {
	all, _ := filepath.Glob(filepath.Join(c.processes, "[0-9]*", "maps")) // the pattern is well-formed
	for _, maps := range all {
		content, err := os.ReadFile(maps)
		if err == nil && strings.Contains(string(content), " "+path+"\n") {
			return true
		}
	}
	return false
}

// removeSockets removes the sockets of a folder that fit a pattern and that nobody has open. Sockets that systemd holds
// for activation are open.
func (c *cleaner) removeSockets(folder, pattern string) error {
	paths, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil {
		return err
	}
	var sockets []string
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
			sockets = append(sockets, path)
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	open, err := c.openSockets()
	if err != nil {
		return err
	}
	var failed []error
	for _, path := range sockets {
		if !open[path] {
			failed = append(failed, c.remove(path))
		}
	}
	return errors.Join(failed...)
}

// openSockets are the paths of the Unix sockets that are bound.
func (c *cleaner) openSockets() (map[string]bool, error) {
	file, err := os.Open(filepath.Join(c.processes, "net", "unix"))
	if err != nil {
		return nil, fmt.Errorf("list the sockets that are open: %w", err)
	}
	defer func() { _ = file.Close() }()
	const pathColumn = 7 // Num RefCount Protocol Flags Type St Inode Path
	open := map[string]bool{}
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		rest := scanner.Text()
		for range pathColumn {
			_, rest, _ = strings.Cut(strings.TrimLeft(rest, " "), " ")
		}
		if strings.HasPrefix(rest, "/") {
			open[rest] = true
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("list the sockets that are open: %w", err)
	}
	return open, nil
}

func (c *cleaner) removeFiles(pattern string) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	var failed []error
	for _, path := range paths {
		failed = append(failed, c.remove(path))
	}
	return errors.Join(failed...)
}

func (c *cleaner) remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	c.tell("removed %s", path)
	return nil
}
