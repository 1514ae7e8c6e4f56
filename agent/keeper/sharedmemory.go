package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The shared memory of Envoy's hot restart (source/server/hot_restart_impl.h) is struct
// SharedMemory { uint64 size; uint64 version; pthread_mutex_t log, access_log; atomic<uint64> flags
// }. The keeper changes no other layout.
const (
	sharedMemorySize    = 104
	sharedMemoryVersion = 11
	flagsOffset         = sharedMemorySize - 8
)

// maxBaseID limits BaseID*10+9, which Envoy computes, to 32 bits.
const maxBaseID = (1<<32 - 10) / 10

// sharedMemory gives access to the files of base IDs.
type sharedMemory struct{ folder string }

func (m sharedMemory) path(baseID uint32) string {
	return filepath.Join(m.folder, "envoy_shared_memory_"+strconv.FormatUint(uint64(baseID)*10, 10))
}

// clearInitializing resets the flag "initializing", which a failed epoch leaves set, and reports
// whether it was set. While it is set, each later epoch exits with "previous envoy process is still
// initializing".
func (m sharedMemory) clearInitializing(baseID uint32) (bool, error) {
	path := m.path(baseID)
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("clear Envoy's initializing flag: %w", err)
	}
	defer func() { _ = file.Close() }()
	var content [sharedMemorySize + 1]byte
	n, err := file.ReadAt(content[:], 0)
	if n == 0 {
		return false, nil // reserve has created the file, but no Envoy has used it yet
	}
	size, version := binary.LittleEndian.Uint64(content[0:]),
		binary.LittleEndian.Uint64(content[8:])
	if n != sharedMemorySize || size != sharedMemorySize || version != sharedMemoryVersion {
		return false, refuse(CodeUnknownLayout,
			"%s has an unknown layout (%d bytes, size %d, version %d; known is size %d, version "+
				"%d): "+
				"Envoy's flag is left alone, start one side by side instead (%v)", path, n, size,
			version, sharedMemorySize, sharedMemoryVersion, err)
	}
	if binary.LittleEndian.Uint64(content[flagsOffset:]) == 0 {
		return false, nil
	}
	if _, err := file.WriteAt(make([]byte, 8), flagsOffset); err != nil {
		return false, fmt.Errorf("clear Envoy's initializing flag: %w", err)
	}
	return true, nil
}

// reserve creates the file of a base ID, which Envoy's epoch 0 replaces.
func (m sharedMemory) reserve(baseID uint32) error {
	file, err := os.OpenFile(m.path(baseID), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// own reports whether the file of a base ID exists and belongs to this user.
func (m sharedMemory) own(baseID uint32) (exists, ours bool) {
	var status unix.Stat_t
	if unix.Lstat(m.path(baseID), &status) != nil {
		return false, false
	}
	return true, int(status.Uid) == os.Geteuid()
}

// choose returns the wanted base ID or, if it is 0, the base ID stored in the folder or a free one.
func (m sharedMemory) choose(wanted uint32, folder string) (uint32, error) {
	if wanted > maxBaseID {
		return 0, fmt.Errorf("base id %d is too large: at most %d", wanted, maxBaseID)
	}
	if wanted != 0 {
		if exists, ours := m.own(wanted); exists && !ours {
			return 0, fmt.Errorf("base id %d is taken: %s belongs to another user; choose "+
				"another base_id, or 0 for a free one", wanted, m.path(wanted))
		}
		return wanted, nil
	}
	memory := filepath.Join(folder, "base-id")
	if content, err := os.ReadFile(memory); err == nil {
		if before, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10,
			32); err == nil && before > 0 && before <= maxBaseID {
			if exists, ours := m.own(uint32(before)); ours ||
				(!exists && m.reserve(uint32(before)) == nil) {
				return uint32(before), nil
			}
		}
	}
	// Begin at a hash of the folder's name, so that a keeper usually gets the same ID again. All
	// candidates are larger than the IDs that people usually choose.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(folder))
	const first, span, attempts = 10_000, 1_000_000, 1000
	for i := range uint32(attempts) {
		candidate := first + (hash.Sum32()%span+i)%span
		err := m.reserve(candidate)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("reserve a base id: %w", err)
		}
		if err := os.WriteFile(memory, []byte(strconv.FormatUint(uint64(candidate), 10)+"\n"),
			0o600); err != nil {
			return 0, errors.Join(fmt.Errorf("store the base id: %w", err), m.remove(candidate))
		}
		return candidate, nil
	}
	return 0, fmt.Errorf("found no free base id in %d attempts; remove stale files "+
		"%s/envoy_shared_memory_*", attempts, m.folder)
}

// remove removes the file of a base ID.
func (m sharedMemory) remove(baseID uint32) error {
	if err := os.Remove(m.path(baseID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove Envoy's shared memory: %w", err)
	}
	return nil
}
