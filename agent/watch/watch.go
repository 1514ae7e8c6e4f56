// Package watch turns file system activity into debounced changes of file content.
//
// Content decides, never the event: a file has changed if it appeared, disappeared or has another
// SHA-256. Touching a file, or replacing it with an equal one, is no change.
// A file that cannot be read counts by inode, size and change time, with Options.Unread any file.
//
// Paths need not exist. A scan follows each path link by link, has inotify watch the folders in
// which a link, a file or a missing name was found, and the listed directories, and reads the files
// whose inode, size or change time differs from the last scan. An event that concerns a path causes
// a scan, which reads only the written files if nothing else changed. So does every checkInterval,
// with all paths, for what inotify does not report: replaced parents, mounts, writes through another
// hard link, changes by other clients of a network file system, lost events.
//
//	fsnotify event, periodic scan ──► debouncer ──► scan ──► Changes
//
// In directories, names that start with a dot are ignored (swap files, locks, Kubernetes' ..data),
// as are files without one of Options.Suffixes.
//
// A File is compared on demand, without a Watcher: for files that other processes read.
package watch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"outrider.org/outrider/agent/part"
)

// checkInterval is the period of the scans for changes that inotify does not report. checkFactor
// bounds their share of time: the next one waits at least checkFactor times as long as one took.
const (
	checkInterval = 2 * time.Second
	checkFactor   = 100
)

// restFactor bounds the share of time spent on scans while many files change: scans are followed by
// rests of restFactor times their duration. Rests of up to restSaved are left out after a quiet
// time, so that the parts of one change (a key and its certificate) are read at once.
const (
	restFactor = 4
	restSaved  = 5 * time.Millisecond
)

// Delays bound when the changes of a burst are reported.
type Delays struct {
	Debounce time.Duration // quiet time after the last change of a burst
	MaxDelay time.Duration // longest time from the first change of a burst to its report
}

// Options of a Watcher.
type Options struct {
	Delays Delays // see SetDelays
	// Suffixes selects the files of directories (".yaml"); none: all files.
	Suffixes []string
	// Unread leaves reading to the receiver. A file that is written is reported even if its content
	// is equal, and once more when its change time can be trusted.
	Unread bool
	Logger *slog.Logger // nil: silent
}

// Watcher reports which files changed. Any goroutine may call Set at any time; call Run once.
type Watcher struct {
	part.Readiness
	options  Options
	open     func() (*fsnotify.Watcher, error) // replaced in tests
	interval time.Duration                     // of checks; shorter in tests
	delays   atomic.Pointer[Delays]
	changes  chan []string
	wake     chan struct{} // Set may have dropped paths of the batch on offer

	mu   sync.Mutex
	tree *tree
}

// New returns a Watcher without paths.
func New(options Options) *Watcher {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{
		options:  options,
		open:     fsnotify.NewWatcher,
		interval: checkInterval,
		changes:  make(chan []string),
		wake:     make(chan struct{}, 1),
		tree:     newTree(options.Suffixes, options.Logger),
	}
	w.tree.unread = options.Unread
	w.SetDelays(options.Delays)
	return w
}

// SetDelays replaces the delays from the next change on.
func (w *Watcher) SetDelays(delays Delays) { w.delays.Store(&delays) }

// Set replaces the watched paths. A path is a file or a directory, existing or not. A directory
// stands for the files in it; with "/..." appended, for those of its sub-directories too. The
// content at the time of Set is the baseline of a new path; a path that was watched before keeps
// its baseline. A caller that reads the files after Set misses no change of them, except one that
// is undone before it is delivered.
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

// Changes delivers the changed files, sorted: a file of Set as given there, a file in a directory
// as the directory's path joined with the name below it, and a directory of Set that appears or
// disappears as its path. Changes that nobody receives are merged; one that is undone before it is
// received is dropped.
func (w *Watcher) Changes() <-chan []string { return w.changes }

// Name is the part's name in logs and errors.
func (w *Watcher) Name() string { return "watch" }

// Run watches until ctx is done and returns nil. It reports changes since Set as well.
func (w *Watcher) Run(ctx context.Context) error {
	var events <-chan fsnotify.Event
	lost := make(chan error, 1)
	inner, err := w.open()
	if err != nil {
		w.options.Logger.Warn("cannot use inotify, checking all watched files periodically; "+
			"raise fs.inotify.max_user_instances (sysctl)", "interval", checkInterval, "error", err)
	} else {
		events = inner.Events
		// fsnotify may hold its lock until an error is received: the receiver must not call it.
		go func() {
			for err := range inner.Errors {
				select {
				case lost <- err:
				default: // one is enough: each causes a scan of everything
				}
			}
		}()
		defer func() { _ = inner.Close() }() // nothing to lose
	}
	w.locked(func(t *tree) { t.attach(inner) })
	w.MarkReady()
	defer w.locked((*tree).detach)
	return w.loop(ctx, events, lost)
}

// loop owns the debouncer and the batch on offer.
func (w *Watcher) loop(ctx context.Context, events <-chan fsnotify.Event, lost <-chan error) error {
	debounce := debouncer{delays: &w.delays}
	settle := time.NewTimer(debounce.touch(time.Now()))
	defer settle.Stop()
	check := time.NewTimer(w.interval)
	defer check.Stop()

	var offered batch
	var rest time.Time // no scan before it
	scan := func() {
		debounce.reset()
		began := time.Now()
		w.locked(func(t *tree) { t.scan(); offered = t.batch() })
		if saved := began.Add(-restSaved); rest.Before(saved) {
			rest = saved
		}
		rest = rest.Add((1 + restFactor) * time.Since(began))
	}
	for {
		var changes chan<- []string
		if len(offered.names) > 0 {
			changes = w.changes
		}
		touched := false
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-events:
			if !ok {
				return errors.New("watch files: fsnotify has closed its events")
			}
			w.locked(func(t *tree) { touched = t.event(event) })
		case err := <-lost:
			w.options.Logger.Info("file events were lost, scanning all watched files", "error", err)
			w.locked(func(t *tree) {
				t.folders.sweep(nil) // the scan watches them anew
				t.all = true
			})
			touched = true
		case <-check.C:
			began := time.Now()
			w.locked(func(t *tree) {
				t.all = true
				touched = t.scan()
			})
			check.Reset(max(w.interval, checkFactor*time.Since(began)))
		case <-settle.C:
			scan()
		case <-w.wake:
			if len(offered.names) > 0 {
				w.locked(func(t *tree) { offered = t.batch() })
			}
		case changes <- offered.names:
			w.locked(func(t *tree) { t.delivered(offered) })
			offered = batch{}
		}
		if touched {
			if wait := max(time.Until(rest), debounce.touch(time.Now())); wait > 0 {
				settle.Reset(wait)
			} else {
				settle.Stop()
				scan()
			}
		}
	}
}

func (w *Watcher) locked(do func(t *tree)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do(w.tree)
}

// debouncer decides when a burst of changes is over: after the quiet time without another change,
// at the latest after the longest delay. Both may change between two calls.
type debouncer struct {
	delays *atomic.Pointer[Delays]
	first  time.Time // first change of the burst; zero: no burst
}

// touch records a change at now and returns how long to wait for the next.
func (d *debouncer) touch(now time.Time) time.Duration {
	if d.first.IsZero() {
		d.first = now
	}
	delays := d.delays.Load()
	return max(0, min(delays.Debounce, d.first.Add(delays.MaxDelay).Sub(now)))
}

// reset ends the burst.
func (d *debouncer) reset() { d.first = time.Time{} }
