package watch

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// mostHashed is the maximum size of a file that a File hashes, in bytes. Certificate files are
// smaller (the CA bundle of a system has about 250 kB); a larger file is a mistake or a growing
// log.
const mostHashed = 1 << 20

// File detects changes of a file that another process reads. It is not safe for concurrent use.
type File struct {
	Path string

	stamp stamp // stamp at the last read; zero: the file must be read again
	sum   uint64
}

// Fingerprint returns 64 bits that change if the content, mode, owner or existence of the file
// changes. If the file cannot be read, such as another user's key, or is larger than 1 MiB, they
// depend on inode, size and change time instead. Fingerprint reads the file only if its inode, size
// or change time has changed. It may block.
func (f *File) Fingerprint() uint64 {
	info, err := os.Stat(f.Path)
	now := stampOf(info)
	if err == nil && info.IsDir() {
		now = now.identity() // changes of a folder's entries do not matter
	}
	if now == f.stamp && now != (stamp{}) {
		return f.sum
	}
	f.stamp = now.ifTrusted()
	found := fmt.Sprint("unreadable ", now, os.IsNotExist(err))
	if err == nil && info.Mode().IsRegular() && info.Size() <= mostHashed {
		var sum [sha256.Size]byte
		if path, err := filepath.EvalSymlinks(f.Path); err == nil && hash(path, &sum) == nil {
			status := info.Sys().(*syscall.Stat_t)
			found = fmt.Sprintf("%x %o %d %d", sum, status.Mode, status.Uid, status.Gid)
		}
	}
	sum := sha256.Sum256([]byte(found))
	f.sum = binary.BigEndian.Uint64(sum[:])
	return f.sum
}
