package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/sockdiag"
)

// removeSharedMemory removes the shared memory that the Envoys of a dead keeper have left: for each
// lineage the file /dev/shm/envoy_shared_memory_N, where N is ten times the base ID that the keeper
// has stored. It retains files that belong to another user or that a process has mapped.
func (c *cleaner) removeSharedMemory(keeperFolder *folder) error {
	baseID, owner, err := c.storedBaseID(keeperFolder)
	if err != nil || baseID == 0 {
		return err
	}
	memory, err := openFolder(c.sharedMemory)
	if err != nil || memory == nil {
		return err
	}
	defer memory.close()
	info := keeper.Info{BaseID: baseID}
	var failed []error
	for lineage := range keeper.MaxLineages {
		name := fmt.Sprintf("envoy_shared_memory_%d", uint64(info.BaseIDOf(lineage))*10)
		info, err := memory.root.Lstat(name)
		if err != nil || status(info).Uid != owner || c.mapped(filepath.Join(c.sharedMemory, name)) {
			continue
		}
		failed = append(failed, c.remove(memory, name))
	}
	return errors.Join(failed...)
}

// storedBaseID returns the base ID in the file in which the keeper has stored it, and the UID of
// the file's owner. The base ID is 0 if there is no valid one.
func (c *cleaner) storedBaseID(keeperFolder *folder) (baseID, owner uint32, err error) {
	if keeperFolder == nil {
		return 0, 0, nil
	}
	file, err := keeperFolder.openRegular(baseIDName)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		c.report("cannot read the base id, shared memory was not touched: %v", err)
		return 0, 0, nil
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return 0, 0, err
	}
	content, err := io.ReadAll(io.LimitReader(file, maxRecord))
	if err != nil {
		return 0, 0, fmt.Errorf("read the base id: %w", err)
	}
	number, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 32)
	if err != nil || number == 0 {
		c.report("%s holds no base id: shared memory was not touched", file.Name())
		return 0, 0, nil //nolint:nilerr // reported above; the other files can be removed
	}
	return uint32(number), status(info).Uid, nil
}

// mapped reports whether a running process has mapped a file.
func (c *cleaner) mapped(path string) bool {
	// Glob fails only for a malformed pattern.
	all, _ := filepath.Glob(filepath.Join(c.processes, "[0-9]*", "maps"))
	for _, maps := range all {
		content, err := os.ReadFile(maps)
		if err == nil && strings.Contains(string(content), " "+path+"\n") {
			return true
		}
	}
	return false
}

// removeSockets removes the sockets in a folder that match a pattern. It retains sockets that a
// process has open, such as systemd for socket activation.
func (c *cleaner) removeSockets(in *folder, pattern string) error {
	names, err := in.names(pattern)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		info, err := in.root.Lstat(name)
		return err != nil || info.Mode()&fs.ModeSocket == 0
	})
	if len(names) == 0 {
		return nil
	}
	open := map[string]bool{}
	err = sockdiag.EachUnixSocket(c.processes, func(s sockdiag.UnixSocket) { open[s.Path] = true })
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		if !open[filepath.Join(in.path, name)] {
			failed = append(failed, c.remove(in, name))
		}
	}
	return errors.Join(failed...)
}

// removeFiles removes the entries in a folder that match a pattern. A directory that is not empty
// is an error.
func (c *cleaner) removeFiles(in *folder, pattern string) error {
	names, err := in.names(pattern)
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		failed = append(failed, c.remove(in, name))
	}
	return errors.Join(failed...)
}

func (c *cleaner) remove(in *folder, name string) error {
	removed, err := in.remove(name)
	if removed {
		c.report("removed %s", filepath.Join(in.path, name))
	}
	return err
}
