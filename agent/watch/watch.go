// Package watch turns file system activity into debounced changes of file content.
//
// An event alone is not a change: a file has changed if it appeared, disappeared or has another
// SHA-256. Touching a file, or replacing it with an equal one, is no change. Files that cannot be
// read, and all files with Options.WithoutReading, are compared by inode, size and change time.
//
// Paths need not exist. A scan resolves each path link by link, watches the folders on its way and
// in the listed directories with inotify, and reads the files whose inode, size or change time
// differs from the last scan. An event or a mount that concerns a path causes a scan of it; if only
// files were written, these are read without a scan. Only where inotify does not report changes
// (network file systems, folders that may not be listed, exhausted limits), a path is scanned every
// pollInterval.
//
//	inotify, mounts, poll ──► debouncer ──► scan, a goroutine per path ──► Changes
//
// A scan runs without a lock. A file system that does not respond delays only its own paths.
//
// In directories, names that start with a dot are ignored (swap files, locks, Kubernetes' ..data),
// as are files without one of Options.Suffixes.
//
// A Notifier shares a Watcher between many users. A File is compared on demand, without a Watcher:
// for files that other processes read.
package watch

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/part"
)

// pollInterval is the period of the scans for changes that inotify does not report. After a scan
// the next one waits at least pollFactor times its duration.
const (
	pollInterval = 2 * time.Second
	pollFactor   = 100
)

// scanWait is the maximum time that Set and the loop wait for a scan. A scan that ends later
// reports what it finds as a change, even if it is the first one of a path.
const scanWait = time.Second

// restFactor bounds the share of time spent on scans while many files change: each scan is followed
// by a rest of restFactor times its duration. After a quiet time up to restSaved of rest is
// omitted, so that the parts of one change (a key and its certificate) are read at once.
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
	// WithoutReading leaves reading to the receiver. A file that is written is reported even if its
	// content is equal, and once more when its change time can be trusted.
	WithoutReading bool
	Logger         *slog.Logger // nil: silent
}

// Watcher reports which files changed. Any goroutine may call Set at any time; call Run once.
type Watcher struct {
	part.Readiness
	options  Options
	open     func() (*fsnotify.Watcher, error) // replaced in tests
	interval time.Duration                     // of polls; shorter in tests
	delays   atomic.Pointer[Delays]
	changes  chan []string
	wake     chan struct{} // the offered batch may be outdated, or a scan is due

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
		interval: pollInterval,
		changes:  make(chan []string),
		wake:     make(chan struct{}, 1),
		tree:     newTree(options.Suffixes, options.Logger),
	}
	w.tree.unread = options.WithoutReading
	w.SetDelays(options.Delays)
	return w
}

// SetDelays replaces the delays from the next change on.
func (w *Watcher) SetDelays(delays Delays) { w.delays.Store(&delays) }

// Set replaces the watched paths. A path is a file or a directory, existing or not. A directory
// stands for the files in it; with "/..." appended, for those in its sub-directories too. The
// content at the time of Set is the baseline of a new path; a path that was watched before keeps
// its baseline. A caller that reads the files after Set misses no change of them, except one that
// is undone before it is delivered. Set waits at most a second for slow file systems.
func (w *Watcher) Set(paths []string) error {
	w.mu.Lock()
	roots, err := w.tree.set(paths)
	jobs := w.begin(roots)
	for _, r := range roots {
		if r.job != nil && !r.baseline && !r.job.late && !slices.Contains(jobs, r.job) {
			jobs = append(jobs, r.job) // begun by a concurrent call of Set
		}
	}
	w.mu.Unlock()
	w.await(jobs)
	w.signal()
	return err
}

// begin starts the jobs that roots are due for. Callers hold mu.
func (w *Watcher) begin(roots []*root) (jobs []*job) {
	for _, r := range roots {
		if r.due() {
			j := r.begin()
			jobs = append(jobs, j)
			go w.run(j)
		}
	}
	return jobs
}

func (w *Watcher) run(j *job) {
	found := j.run(w.tree.folders, w.options.WithoutReading)
	w.mu.Lock()
	w.tree.apply(j, found)
	again := j.late || j.root.due()
	w.mu.Unlock()
	if close(j.done); again {
		w.signal()
	}
}

// await waits until jobs are done, scanWait at most, and reports whether they are.
func (w *Watcher) await(jobs []*job) bool {
	timeout := time.NewTimer(scanWait)
	defer timeout.Stop()
	for _, j := range jobs {
		select {
		case <-j.done:
		case <-timeout.C:
			w.mu.Lock()
			for _, j := range jobs {
				j.late = true
			}
			w.mu.Unlock()
			return false
		}
	}
	return true
}

// signal wakes the loop.
func (w *Watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // a signal is pending
	}
}

// Changes delivers the changed files, sorted: a file of Set as passed to it, a file in a directory
// as the directory's path joined with the name below it, and a directory of Set that appears or
// disappears as its path. Changes that nobody receives are merged; one that is undone before it is
// received is dropped.
func (w *Watcher) Changes() <-chan []string { return w.changes }

// Name is the part's name in logs and errors.
func (w *Watcher) Name() string { return "watch" }

// Run watches until ctx is done and returns nil. It reports changes since Set as well.
func (w *Watcher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	events, lost := make(chan event), make(chan error, 1)
	inner, err := w.open()
	if err != nil {
		w.options.Logger.Warn("cannot use inotify, polling all watched files", "interval",
			pollInterval, "fix", "raise fs.inotify.max_user_instances (sysctl)", "error", err)
	} else {
		reading.Go(func() {
			for of := range inner.Events {
				for _, path := range w.tree.folders.names(of.Name) {
					select {
					case events <- event{path, of.Op}:
					case <-ctx.Done():
					}
				}
			}
		})
		// fsnotify may hold its lock until an error is received: this goroutine must not call it.
		reading.Go(func() {
			for err := range inner.Errors {
				if errors.Is(err, unix.EINVAL) {
					continue // a moved file was removed already, and its watch with it
				}
				select {
				case lost <- err:
				default: // one pending error suffices: it causes a scan of everything
				}
			}
		})
		defer func() { _ = inner.Close() }() // nothing to lose
	}
	points := make(chan []string)
	if table, err := openMounts(); err != nil {
		w.options.Logger.Warn("cannot watch mounts", "error", err)
	} else {
		reading.Go(func() {
			table.await(func(changed []string) {
				select {
				case points <- changed:
				case <-ctx.Done():
				}
			})
		})
		defer func() { _ = table.file.Close() }() // only read
	}
	w.tree.folders.attach(inner)
	defer w.tree.folders.attach(nil)
	w.locked((*tree).invalidate)
	w.MarkReady()
	return w.loop(ctx, events, points, lost)
}

// loop owns the debouncer and the offered batch.
func (w *Watcher) loop(
	ctx context.Context, events <-chan event, mounts <-chan []string, lost <-chan error,
) error {
	debounce := debouncer{delays: &w.delays}
	quiet := time.NewTimer(debounce.touch(time.Now()))
	defer quiet.Stop()
	var poll <-chan time.Time // nil: nothing to poll
	var offered batch
	var rest time.Time // earliest time of the next scan
	scan := func() time.Duration {
		began := time.Now()
		w.mu.Lock()
		jobs := w.begin(slices.Collect(maps.Values(w.tree.roots)))
		w.mu.Unlock()
		if !w.await(jobs) {
			return 0 // waiting for a file system that does not respond costs no CPU time
		}
		return time.Since(began)
	}
	report := func() {
		debounce.reset()
		saved := time.Now().Add(-restSaved)
		took := scan()
		if rest.Before(saved) {
			rest = saved
		}
		rest = rest.Add((1 + restFactor) * took)
		w.locked(func(t *tree) { t.changed, offered = false, t.batch() })
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
		case err := <-lost:
			w.options.Logger.Info("file events were lost, scanning all watched files", "error", err)
			w.locked(func(t *tree) { touched = t.event(event{}) })
		case of := <-events:
			w.locked(func(t *tree) { touched = t.event(of) })
		case points := <-mounts:
			w.locked(func(t *tree) { touched = t.mounted(points) })
		case <-poll:
			w.locked(func(t *tree) { t.polled(true) })
			poll = time.After(max(w.interval, pollFactor*scan()))
			w.locked(func(t *tree) { touched = t.changed })
		case <-quiet.C:
			report()
		case <-w.wake:
			w.locked(func(t *tree) {
				if touched = t.changed || t.due(); len(offered.names) > 0 {
					offered = t.batch()
				}
			})
		case changes <- offered.names:
			w.locked(func(t *tree) { t.delivered(offered) })
			offered = batch{}
		}
		if touched {
			if wait := max(time.Until(rest), debounce.touch(time.Now())); wait > 0 {
				quiet.Reset(wait)
			} else {
				quiet.Stop()
				report()
			}
		}
		w.locked(func(t *tree) {
			if !t.polled(false) {
				poll = nil
			} else if poll == nil {
				poll = time.After(w.interval)
			}
		})
	}
}

func (w *Watcher) locked(do func(t *tree)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do(w.tree)
}

// debouncer determines when a burst of changes is over: Debounce after the last change, but at most
// MaxDelay after the first. The delays may change between two calls.
type debouncer struct {
	delays *atomic.Pointer[Delays]
	first  time.Time // first change of the burst; zero: no burst
}

// touch records a change at now and returns the time until the burst is over if no other change
// follows.
func (d *debouncer) touch(now time.Time) time.Duration {
	if d.first.IsZero() {
		d.first = now
	}
	delays := d.delays.Load()
	return max(0, min(delays.Debounce, d.first.Add(delays.MaxDelay).Sub(now)))
}

// reset ends the burst.
func (d *debouncer) reset() { d.first = time.Time{} }
