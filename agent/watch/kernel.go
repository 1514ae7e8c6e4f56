package watch

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// kernelEvent says that something happened to a name in a folder.
type kernelEvent struct {
	folder, name string
	// written: the file's content was written to and nothing else; otherwise the name itself may lead elsewhere now.
	written bool
	left    bool // the name is not there any more
}

// scope is how much of a folder is watched.
type scope int

const (
	unwatched scope = iota
	itself          // that it is moved or removed: an event of its name, in the folder above
	entries         // and what happens to the names in it
)

// kernel is inotify as the tree sees it: folders in, events out.
type kernel struct {
	// add watches a folder, also one that is watched. If another one has its path by now it is replaced, and no event of the one
	// before comes any more. After an error what was watched still is: if it has gone, its event is yet to come.
	add    func(folder string, how scope) (replaced bool, err error)
	remove func(folder string)
	events <-chan kernelEvent
	errors <-chan error // events were lost (queue overflow, reading failed)
	close  func()
}

// noKernel watches nothing, so that every folder is polled.
func noKernel(reason error) *kernel {
	return &kernel{
		add:    func(string, scope) (bool, error) { return false, reason },
		remove: func(string) {},
		close:  func() {},
	}
}

// openKernel starts an inotify instance.
func openKernel() (*kernel, error) {
	descriptor, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	i := newInotify(descriptor)
	return &kernel{add: i.add, remove: i.remove, events: i.events, errors: i.errors, close: i.close}, nil
}

// What is asked of the kernel. Of a folder by itself nothing is asked that it would tell of the entries, too (IN_ATTRIB).
const (
	itselfMask  = unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	entriesMask = itselfMask | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_ATTRIB
	gone        = unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_UNMOUNT
)

var errOverflow = errors.New("the kernel's queue of events overflowed; raise fs.inotify.max_queued_events (sysctl)")

// eventOf is what an event of inotify says: of an entry of the folder, or of the folder itself.
func eventOf(folder, name string, mask uint32) (event kernelEvent, ok bool) {
	switch {
	case mask&gone != 0:
		return kernelEvent{folder: filepath.Dir(folder), name: filepath.Base(folder)}, true
	case name != "":
		return kernelEvent{folder: folder, name: name, written: mask == unix.IN_MODIFY, left: mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0}, true
	default:
		return kernelEvent{}, false // of the folder's attributes, or the end of its watch
	}
}
