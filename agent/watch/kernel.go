package watch

import (
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// kernelEvent says that something happened to a name in a watched folder.
type kernelEvent struct {
	folder, name string
	// written: the file's content was written to and nothing else; otherwise the name itself may lead elsewhere now.
	written bool
}

// kernel is inotify as the tree sees it: folders in, events out.
type kernel struct {
	add    func(folder string) error
	remove func(folder string)
	events <-chan kernelEvent
	errors <-chan error // events were lost (queue overflow, reading failed)
	close  func()
}

// openKernel starts an inotify instance.
func openKernel() (*kernel, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	events := make(chan kernelEvent)
	errors := make(chan error, 1)
	done := make(chan struct{})
	var pumps sync.WaitGroup
	pumps.Go(func() {
		for event := range notify.Events {
			name := filepath.Clean(event.Name)
			if event.Name == "" {
				continue // a watch that was removed
			}
			select {
			case events <- kernelEvent{filepath.Dir(name), filepath.Base(name), event.Op == fsnotify.Write}:
			case <-done:
			}
		}
	})
	// A goroutine of its own: fsnotify sends some errors with its lock held, and would wait for ever for a reader that
	// is just calling Add. One error waiting is enough, since each means the same: look at everything.
	pumps.Go(func() {
		for err := range notify.Errors {
			select {
			case errors <- err:
			default:
			}
		}
	})
	return &kernel{
		add: notify.Add,
		remove: func(folder string) {
			_ = notify.Remove(folder) // an error says that it is not watched any more: what was wanted
		},
		events: events,
		errors: errors,
		close: func() {
			close(done)
			_ = notify.Close() // of an inotify descriptor: nothing to lose
			pumps.Wait()
		},
	}, nil
}

// noKernel watches nothing, so that every folder is polled.
func noKernel(reason error) *kernel {
	return &kernel{
		add:    func(string) error { return reason },
		remove: func(string) {},
		close:  func() {},
	}
}
