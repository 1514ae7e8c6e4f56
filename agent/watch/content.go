package watch

import (
	"crypto/sha256"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// trustedAge is the age above which a file's change time is trusted. If a file is written, read and
// written again within one tick of the kernel's clock (1 to 10 ms), the second write leaves the
// change time unchanged.
const trustedAge = 100 * time.Millisecond

type kind uint8

const (
	absent kind = iota
	file
	directory
	// a file that cannot be read, a path of another type, or one in a folder that cannot be
	// searched
	unreadable
	unknown // not read yet
)

// content describes the content of a path. If two are equal, the content has not changed.
type content struct {
	kind  kind
	sum   [sha256.Size]byte // hash of a file's content
	stamp stamp             // stamp of a file whose content is not hashed
	// looks is incremented whenever a file that is not read (Options.ReportWithoutReading) may have
	// changed, even if its stamp is the same.
	looks int
}

// stamp has the file metadata that the kernel changes whenever a file's content may have changed.
// The zero stamp means that no file exists.
type stamp struct {
	device, inode uint64
	size          int64
	changed       syscall.Timespec // ctime: cannot be set back
}

// identity returns the part of s that identifies a file or folder.
func (s stamp) identity() stamp { return stamp{device: s.device, inode: s.inode} }

// ifTrusted returns s, or the zero stamp if the change time is so recent that a later write may not
// change it (see trustedAge).
func (s stamp) ifTrusted() stamp {
	if time.Since(time.Unix(s.changed.Unix())) < trustedAge {
		return stamp{}
	}
	return s
}

// stampOf returns the stamp of a file; zero if info is nil.
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

// lstat returns the stamp of path itself, without following a link; zero if path does not exist.
func lstat(path string) stamp {
	info, _ := os.Lstat(path)
	return stampOf(info)
}

// readContent hashes the file at path, which contains no symbolic links. before and then are the
// content and the stamp at the last read: if the stamp is the same, readContent returns before. If
// unread is set, it does not hash the file, but counts it as changed if the stamp differs. The
// returned stamp is zero if the change time is too recent to be trusted.
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
	defer func() { _ = opened.Close() }() // the file was only read, so an error does not matter
	h := sha256.New()
	if _, err := io.Copy(h, opened); err != nil {
		return err
	}
	h.Sum(sum[:0])
	return nil
}
