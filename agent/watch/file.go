package watch

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// mostHashed is the largest file, in bytes, that a File hashes. A certificate is smaller (the CA
// bundle of a system has about 250 kB); a larger file is a mistake or a growing log.
const mostHashed = 1 << 20

// File is a file that another process reads. It is not safe for concurrent use.
type File struct {
	Path string

	stamp stamp // at the last read; zero: read it again
	sum   uint64
}

// Fingerprint returns 64 bits that change with the content, mode, owner or existence of the file. A
// file that cannot be read, such as another user's key, or is larger than 1 MiB counts by inode,
// size and change time. It reads the file only if these have changed. It may block.
func (f *File) Fingerprint() uint64 {
	info, err := os.Stat(f.Path)
	now := stampOf(info)
	if err == nil && info.IsDir() {
		now = now.identity() // a folder counts by identity only: its entries do not matter
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
