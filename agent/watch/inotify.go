package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// inotify is an inotify instance. The kernel knows folders by number, and one folder that is mounted at several paths by one number.
type inotify struct {
	file   *os.File
	events chan kernelEvent
	errors chan error
	done   chan struct{}
	ended  sync.WaitGroup

	mu      sync.Mutex
	numbers map[string]int32
	paths   map[int32][]string
	scopes  map[string]scope
}

func newInotify(descriptor int) *inotify {
	i := &inotify{
		file: os.NewFile(uintptr(descriptor), "inotify"), events: make(chan kernelEvent), errors: make(chan error, 1), done: make(chan struct{}),
		numbers: map[string]int32{}, paths: map[int32][]string{}, scopes: map[string]scope{},
	}
	i.ended.Go(i.read)
	return i
}

// close ends the events; nobody calls add or remove any more.
func (i *inotify) close() {
	close(i.done)
	_ = i.file.Close() // nothing to lose
	i.ended.Wait()
}

// add watches a folder, or more or less of it than before: see kernel. After an error what was watched still is.
func (i *inotify) add(folder string, how scope) (replaced bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	mask := uint32(entriesMask)
	if how == itself {
		mask = itselfMask | unix.IN_MASK_ADD // the entries of the same folder may be watched at another path
	}
	number, err := i.watch(folder, mask)
	if err != nil {
		return false, err
	}
	wide := i.wide(number)
	replaced = i.enter(folder, number, how)
	if wide && !i.wide(number) {
		if number, err = i.watch(folder, itselfMask); err != nil {
			return replaced, err
		}
		replaced = i.enter(folder, number, how) || replaced
	}
	return replaced, nil
}

// wide says whether the entries of a folder are watched at any of its paths.
func (i *inotify) wide(number int32) bool {
	return slices.ContainsFunc(i.paths[number], func(path string) bool { return i.scopes[path] == entries })
}

// enter notes the number of the folder that has a path now, and says whether it is another one than before.
func (i *inotify) enter(folder string, number int32, how scope) (replaced bool) {
	before, known := i.numbers[folder]
	if replaced = known && before != number; replaced {
		i.forget(folder)
	}
	if i.scopes[folder] = how; !known || replaced {
		i.numbers[folder], i.paths[number] = number, append(i.paths[number], folder)
	}
	return replaced
}

func (i *inotify) watch(folder string, mask uint32) (number int32, err error) {
	connection, err := i.file.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("watch %s: %w", folder, err)
	}
	var wd int
	if controlled := connection.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), folder, mask) }); controlled != nil {
		err = controlled
	}
	if err != nil {
		return 0, &fs.PathError{Op: "watch", Path: folder, Err: err}
	}
	return int32(wd), nil
}

// remove ends the watch of a folder.
func (i *inotify) remove(folder string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.forget(folder)
}

// forget is remove; the lock is held.
func (i *inotify) forget(folder string) {
	number, known := i.numbers[folder]
	if !known {
		return
	}
	delete(i.numbers, folder)
	delete(i.scopes, folder)
	left := slices.DeleteFunc(i.paths[number], func(path string) bool { return path == folder })
	if i.paths[number] = left; len(left) > 0 {
		return
	}
	delete(i.paths, number)
	connection, err := i.file.SyscallConn()
	if err != nil {
		return // it is closed
	}
	// An error says that it is not watched any more: what was wanted.
	_ = connection.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(number)) })
}

// eventsAtOnce is how many bytes of events are read at once: some hundred.
const eventsAtOnce = 8 << 10

// read passes events on until the instance is closed.
func (i *inotify) read() {
	defer close(i.events)
	buffer := make([]byte, eventsAtOnce)
	for {
		n, err := i.file.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			i.lost(fmt.Errorf("read events: %w", err))
			return
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			number, mask := int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[4:])
			end := min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(rest[12:])), len(rest))
			name := string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:end], "\x00"))
			rest = rest[end:]
			if !i.tell(number, mask, name) {
				return
			}
		}
	}
}

// lost tells that events were lost. One error waiting is enough: each means the same, look at everything.
func (i *inotify) lost(err error) {
	select {
	case i.errors <- err:
	default:
	}
}

// tell passes an event on; false: nobody takes it any more.
func (i *inotify) tell(number int32, mask uint32, name string) bool {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		i.lost(errOverflow)
		return true
	}
	i.mu.Lock()
	folders := slices.Clone(i.paths[number])
	if mask&unix.IN_IGNORED != 0 { // the kernel has ended the watch
		for _, folder := range folders {
			delete(i.numbers, folder)
			delete(i.scopes, folder)
		}
		delete(i.paths, number)
	}
	i.mu.Unlock()
	for _, folder := range folders {
		event, ok := eventOf(folder, name, mask)
		if !ok {
			continue
		}
		select {
		case i.events <- event:
		case <-i.done:
			return false
		}
	}
	return true
}
