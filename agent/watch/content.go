package watch

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// settled is the age from which a file's change time tells all: a write within the clock's tick after the file was
// read leaves the same time. Kernels tick every 1 to 10 ms.
const settled = 100 * time.Millisecond

// mostHashed is the largest file, in bytes, that is read for no other reason than to tell changes of what another process reads: what
// is larger is no certificate, but a mistake or a log that grows all the time. The authorities of a system have a quarter of it.
const mostHashed = 1 << 20

type kind uint8

const (
	absent kind = iota
	file
	directory
	unreadable // it is there, but cannot be read, is not a regular file or is too large to be read for others
)

// content is what a path holds, comparable.
type content struct {
	kind   kind
	sum    [sha256.Size]byte // of a file
	stamp  stamp             // of a regular file that is not read, of which it is all that is known
	access access            // of a file that can be read, where it counts
}

// access is who may do what with a file.
type access struct{ mode, user, group uint32 }

// stamp is what the kernel changes whenever a file's content may have changed. The zero stamp equals no file's.
type stamp struct {
	device, inode uint64
	size          int64
	changed       unix.Timespec // ctime: nobody can set it back
}

// readContent reads the file at path (free of symbolic links), unless its stamp is the one of what was read before.
// It returns the zero stamp where the file is too fresh for its stamp to be trusted. Who may read it is a part of the content if
// forOthers: another process reads it. Then it is not read if it is large, and counts by its stamp.
func readContent(path string, before content, beforeStamp stamp, forOthers bool) (content, stamp) {
	// Not blocking: opening a FIFO would wait for its writer.
	descriptor, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return content{}, stamp{}
		}
		return contentUnread(path), stamp{}
	}
	opened := os.NewFile(uintptr(descriptor), path)
	defer func() { _ = opened.Close() }() // it was only read

	var status unix.Stat_t
	if err := unix.Fstat(descriptor, &status); err != nil || status.Mode&unix.S_IFMT != unix.S_IFREG {
		return content{kind: unreadable}, stamp{}
	}
	now := stampOf(&status)
	if now == beforeStamp {
		return before, now
	}
	if forOthers && status.Size > mostHashed {
		return content{kind: unreadable, stamp: now}, now
	}
	result := content{kind: file}
	hash := sha256.New()
	if _, err := io.Copy(hash, opened); err != nil {
		return content{kind: unreadable}, stamp{}
	}
	hash.Sum(result.sum[:0])
	if forOthers {
		result.access = access{status.Mode, status.Uid, status.Gid}
	}
	if time.Since(time.Unix(status.Ctim.Unix())) < settled {
		now = stamp{}
	}
	return result, now
}

func stampOf(status *unix.Stat_t) stamp {
	return stamp{device: status.Dev, inode: status.Ino, size: status.Size, changed: status.Ctim}
}

// contentUnread is what can be told of a path that cannot be opened.
func contentUnread(path string) content {
	var status unix.Stat_t
	if unix.Lstat(path, &status) != nil || status.Mode&unix.S_IFMT != unix.S_IFREG {
		return content{kind: unreadable}
	}
	return content{kind: unreadable, stamp: stampOf(&status)}
}
