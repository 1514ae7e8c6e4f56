package watch

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// Notifier notifies its users when one of their files may have changed. All users share one
// Watcher. Its methods may be called by any goroutine; Run may be called once.
type Notifier struct {
	watcher *Watcher
	logger  *slog.Logger
	rewatch chan struct{} // signals that users were added or removed; has room for one signal

	mu    sync.Mutex
	users map[*user]bool // the values report whether the user's files are watched already
}

type user struct {
	paths   []string
	changed func()
}

// NewNotifier returns a Notifier. delays determine which changes are merged into one notification.
// logger may be nil.
func NewNotifier(delays Delays, logger *slog.Logger) *Notifier {
	watcher := New(Options{Delays: delays, ReportWithoutReading: true, Logger: logger})
	return &Notifier{watcher: watcher, logger: watcher.options.Logger,
		rewatch: make(chan struct{}, 1), users: map[*user]bool{}}
}

// Watch calls changed when the content or the access rights of one of paths may have changed. It
// also calls changed once when the files are first watched, in case they have changed since the
// caller read them. changed must not block. It may be called once more after stop.
func (n *Notifier) Watch(paths []string, changed func()) (stop func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	u := &user{paths, changed}
	n.users[u] = false
	n.signal()
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.users, u)
		n.signal()
	}
}

func (n *Notifier) signal() {
	select {
	case n.rewatch <- struct{}{}:
	default: // a signal is pending
	}
}

// Run watches the files until ctx ends. It returns at once if files cannot be watched.
func (n *Notifier) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { ended <- n.watcher.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-n.rewatch:
			n.update()
		case changed := <-n.watcher.Changes():
			n.notify(func(u *user) bool {
				return slices.ContainsFunc(u.paths, func(path string) bool {
					_, found := slices.BinarySearch(changed, path)
					return found
				})
			})
		}
	}
}

// update makes the Watcher watch the files of all current users.
func (n *Notifier) update() {
	n.mu.Lock()
	before := maps.Clone(n.users)
	n.mu.Unlock()
	var paths []string
	for u := range before {
		paths = append(paths, u.paths...)
	}
	if err := n.watcher.SetPaths(paths); err != nil {
		n.logger.Warn("cannot watch all files", "error", err)
	}
	n.notify(func(u *user) bool {
		watched, known := before[u]
		if known {
			n.users[u] = true
		}
		return known && !watched
	})
}

// notify calls the function changed of all users for which due returns true.
func (n *Notifier) notify(due func(*user) bool) {
	var all []*user
	n.mu.Lock()
	for u := range n.users {
		if due(u) {
			all = append(all, u)
		}
	}
	n.mu.Unlock()
	for _, u := range all {
		u.changed()
	}
}
