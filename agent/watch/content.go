package watch

import (
	"crypto/sha256"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// trustedAge is the age from which a change time can be trusted: a write that follows a read within
// one clock tick leaves the change time as it was. Kernels tick every 1 to 10 ms.
const trustedAge = 100 * time.Millisecond

type kind uint8

const (
	absent kind = iota
	file
	directory
	unreadable // not readable, not a regular file, or in a folder that cannot be searched
	unknown    // not read yet
)

// content is the content of a path, in comparable form.
type content struct {
	kind  kind
	sum   [sha256.Size]byte // of a file
	stamp stamp             // of a regular file that is not hashed
	// looks counts possible changes that the stamp does not show (Options.WithoutReading).
	looks int
}

// stamp has the metadata that the kernel changes whenever a file's content may have changed. The
// zero stamp means that there is no file.
type stamp struct {
	device, inode uint64
	size          int64
	changed       syscall.Timespec // ctime: cannot be set back
}

// identity returns the part of s that identifies a file or folder.
func (s stamp) identity() stamp { return stamp{device: s.device, inode: s.inode} }

// ifTrusted returns s, or the zero stamp if the change time is too recent to be trusted (see
// trustedAge).
func (s stamp) ifTrusted() stamp {
	if time.Since(time.Unix(s.changed.Unix())) < trustedAge {
		return stamp{}
	}
	return s
}

// stampOf returns the stamp of a file, zero for nil.
func stampOf(info fs.FileInfo) stamp {
	if info == nil {
		return stamp{}
	}
	status := info.Sys().(*syscall.Stat_t)
	return stamp{status.Dev, status.Ino, status.Size, status.Ctim}
}

// hardLinks returns the number of names of a file.
func hardLinks(info fs.FileInfo) uint64 {
	return uint64(info.Sys().(*syscall.Stat_t).Nlink) //nolint:unconvert // 32 bits on arm64
}

// lstat returns the stamp of path itself, zero if there is none.
func lstat(path string) stamp {
	info, _ := os.Lstat(path)
	return stampOf(info)
}

// readContent hashes the file at path (without symbolic links). If its stamp is still then, it
// returns before instead. The returned stamp is zero if the change time is too recent to be
// trusted. If unread, readContent does not hash the file, and counts it as changed unless its stamp
// is still then.
func readContent(path string, before content, then stamp, unread bool) (content, stamp) {
	info, err := os.Lstat(path)
	now := stampOf(info)
	switch {
	case err != nil && absence(err):
		return content{}, now
	case err != nil, !info.Mode().IsRegular():
		return content{kind: unreadable}, now
	case now == then:
		return before, now
	}
	result := content{kind: file}
	if unread {
		result.stamp, result.looks = now, before.looks+1
	} else if hash(path, &result.sum) != nil {
		result = content{kind: unreadable, stamp: now}
	}
	return result, now.ifTrusted()
}

func hash(path string, sum *[sha256.Size]byte) error {
	// Non-blocking: if the file has been replaced by a FIFO, opening it would wait for a writer.
	opened, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = opened.Close() }() // opened for reading only
	h := sha256.New()
	if _, err := io.Copy(h, opened); err != nil {
		return err
	}
	h.Sum(sum[:0])
	return nil
}
