// Package watch turns what happens to files into debounced changes of their content. It is the one place that knows
// inotify, renames, editors' habits and symlink farms.
//
// What counts is whether a file is there and what it holds (SHA-256), never the event: a file that was touched, or was
// replaced by an equal one, has not changed (but see Options.Access). Of a file that cannot be read the kernel's stamp
// counts instead: its number, size and time of change.
//
// Paths need not exist. Every folder and every symbolic link on the way to a path is watched too, so that a parent that
// is created later, moved away or replaced is seen like the file itself.
//
// In a directory, files whose name starts with a dot are nobody's configuration (editors' swap files and locks,
// Kubernetes' ..data) and are not looked at; nor are files without one of the suffixes in Options.
//
// Not seen: what is mounted over a watched folder later, and writes that reach a file through another hard link in a
// folder that is not watched.
package watch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// pollInterval is how often folders are looked at that the kernel refuses to watch (limits of inotify, no permission
// to read). Where inotify works nothing is ever polled.
const pollInterval = 5 * time.Second

// Options of a Watcher. The zero value is usable.
type Options struct {
	Debounce func() time.Duration // quiet time after the last change before it is told; asked at each change; nil: 100 ms
	MaxDelay func() time.Duration // longest time from the first change until it is told; nil: 10 s
	Suffixes []string             // of the files looked at in directories (".yaml"); none: all files
	Access   bool                 // other processes read what is given without "/...": files, whose mode and owner count too, and above 1 MiB the stamp alone
	Logger   *slog.Logger         // nil: silent
}

// Watcher tells which files changed. Set may be called at any time, by any goroutine; Run once.
type Watcher struct {
	options Options
	open    func() (*kernel, error) // inotify; replaced in tests
	changes chan []string
	wake    chan struct{} // Set dropped paths: the batch on offer may name them; or it found that a folder was replaced

	mu   sync.Mutex
	tree *tree
}

// New returns a Watcher of nothing: see Set and Run.
func New(options Options) *Watcher {
	if options.Debounce == nil {
		options.Debounce = func() time.Duration { return 100 * time.Millisecond }
	}
	if options.MaxDelay == nil {
		options.MaxDelay = func() time.Duration { return 10 * time.Second }
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	tree := newTree(options.Suffixes, options.Logger)
	tree.access = options.Access
	return &Watcher{
		options: options,
		open:    openKernel,
		changes: make(chan []string),
		wake:    make(chan struct{}, 1),
		tree:    tree,
	}
}

// Set makes paths the watched ones, instead of those before. A path is a file or a directory, there or not yet; of a
// directory the files in it are watched, and with "/..." at its end those of its sub-directories too. What a new path
// holds now is what later changes are measured against; a path that was watched before keeps what it had. So call Set
// first and read the files after it, and no change is missed.
func (w *Watcher) Set(paths []string) error {
	w.mu.Lock()
	err := w.tree.set(paths)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return err
}

// Changes tells the files that changed, sorted: a file of Set as it was given there, a file in a directory as the
// directory's path with the file's name below it. A directory that itself comes or goes is told as its path. Changes
// that nobody takes are merged; one that was undone before it was taken is not told.
func (w *Watcher) Changes() <-chan []string { return w.changes }

// Name is the part's name in logs and errors.
func (w *Watcher) Name() string { return "watch" }

// Run watches until ctx is done, and then returns nil. What changed between Set and Run is told as well.
func (w *Watcher) Run(ctx context.Context) error {
	source, err := w.open()
	if err != nil {
		w.options.Logger.Warn("files cannot be watched and are looked at every few seconds instead; "+
			"raise fs.inotify.max_user_instances (sysctl)", "interval", pollInterval, "error", err)
		source = noKernel(err)
	}
	defer source.close()

	w.mu.Lock()
	w.tree.attach(source)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.tree.detach()
		w.mu.Unlock()
	}()
	return w.loop(ctx, source)
}

// loop is the owner of the debounce and of the batch on offer.
func (w *Watcher) loop(ctx context.Context, source *kernel) error {
	quiet := quietTime{debounce: w.options.Debounce, maxDelay: w.options.MaxDelay}
	settle := time.NewTimer(quiet.touch(time.Now()))
	defer settle.Stop()
	var poll <-chan time.Time // nil as long as the kernel watches every folder

	var offered batch
	for {
		if w.catchUp() {
			settle.Reset(quiet.touch(time.Now()))
		}
		var changes chan<- []string
		if len(offered.names) > 0 {
			changes = w.changes
		}
		if poll == nil && w.blind() {
			poll = time.After(pollInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-source.events:
			if !ok {
				return fmt.Errorf("watch files: the kernel's events ended")
			}
			if w.event(event) {
				settle.Reset(quiet.touch(time.Now()))
			}
		case err := <-source.errors:
			w.options.Logger.Info("events about files were lost; looking at all of them", "error", err)
			w.rescan()
			settle.Reset(quiet.touch(time.Now()))
		case <-poll:
			poll = nil
			w.rescan()
			settle.Reset(quiet.touch(time.Now()))
		case <-settle.C:
			quiet.over()
			offered = w.settle()
		case <-w.wake:
			offered = w.batch()
		case changes <- offered.names:
			w.delivered(offered)
			offered = batch{}
		}
	}
}

func (w *Watcher) event(event kernelEvent) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tree.event(event)
}

func (w *Watcher) catchUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tree.catchUp()
}

func (w *Watcher) rescan() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tree.rescan()
}

func (w *Watcher) settle() batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tree.settle()
	return w.tree.batch()
}

func (w *Watcher) batch() batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tree.batch()
}

func (w *Watcher) delivered(told batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tree.delivered(told)
}

// blind says whether there is a folder that the kernel does not watch.
func (w *Watcher) blind() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tree.blind) > 0
}
