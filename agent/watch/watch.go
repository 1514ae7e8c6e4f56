// Package watch turns file system activity into debounced changes of file content.
//
// An event alone is not a change: a file has changed if it appeared, disappeared or has another
// SHA-256. Touching a file, or replacing it with an equal one, is no change. Files that cannot be
// read, and all files with Options.ReportWithoutReading, are compared by inode, size and change
// time.
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

	"outrider.org/outrider/agent/lifecycle"
)

// pollInterval is the interval of scans of paths whose changes inotify does not report. The pause
// after such a scan is at least pollFactor times its duration.
const (
	pollInterval = 2 * time.Second
	pollFactor   = 100
)

// scanWait is the maximum time for which SetPaths and the loop wait for a scan. If the first scan
// of a path takes longer, all files that it finds are reported as changed.
const scanWait = time.Second

// restFactor bounds the share of time spent on scans while many files change: each scan is followed
// by a rest of restFactor times its duration. After a quiet time, a rest of up to restSaved is
// omitted, so that files that change together (a key and its certificate) are read in quick
// succession.
const (
	restFactor = 4
	restSaved  = 5 * time.Millisecond
)

// Delays bound when the changes of a burst are reported.
type Delays struct {
	Debounce time.Duration // time without a change after which a burst ends
	MaxDelay time.Duration // longest time from the first change of a burst to its report
}

// Options of a Watcher.
type Options struct {
	Delays Delays // initial delays; see SetDelays
	// Suffixes are the endings of the files in directories that are watched (".yaml"); none: all
	// files.
	Suffixes []string
	// ReportWithoutReading leaves reading to the receiver of changes. A written file is reported
	// even if its content is equal, and a second time once a further write would change its change
	// time.
	ReportWithoutReading bool
	Logger               *slog.Logger // nil: no log
}

// Watcher reports which files have changed. SetPaths may be called at any time by any goroutine;
// Run may be called once.
type Watcher struct {
	lifecycle.Readiness
	options  Options
	open     func() (*fsnotify.Watcher, error) // opens inotify; replaced in tests
	interval time.Duration                     // interval of polls; shorter in tests
	delays   atomic.Pointer[Delays]
	changes  chan []string
	wake     chan struct{} // signals that the offered batch may be outdated, or that a scan is due

	mu   sync.Mutex
	tree *tree
}

// New returns a Watcher that watches no paths yet.
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
	w.tree.unread = options.ReportWithoutReading
	w.SetDelays(options.Delays)
	return w
}

// SetDelays sets the delays that apply from the next change on.
func (w *Watcher) SetDelays(delays Delays) { w.delays.Store(&delays) }

// SetPaths replaces the watched paths. A path is a file or a directory and need not exist. A
// directory stands for the files in it; with "/..." appended, also for those in its
// sub-directories. Later changes are differences from the content during SetPaths, or, for a path
// that was already watched, from the content that the Watcher has read last. A caller that reads
// the files after SetPaths misses no change, unless a change is undone before it is delivered.
// SetPaths waits at most a second for slow file systems.
func (w *Watcher) SetPaths(paths []string) error {
	w.mu.Lock()
	roots, err := w.tree.set(paths)
	jobs := w.begin(roots)
	for _, r := range roots {
		if r.job != nil && !r.baseline && !r.job.late && !slices.Contains(jobs, r.job) {
			jobs = append(jobs, r.job) // a concurrent call of SetPaths began this job
		}
	}
	w.mu.Unlock()
	w.await(jobs)
	w.signal()
	return err
}

// begin starts the jobs of those paths of SetPaths that must be examined. The caller must hold mu.
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
	found := j.run(w.tree.folders, w.options.ReportWithoutReading)
	w.mu.Lock()
	w.tree.apply(j, found)
	again := j.late || j.root.due()
	w.mu.Unlock()
	if close(j.done); again {
		w.signal()
	}
}

// await waits for jobs, but not longer than scanWait, and reports whether all have ended.
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

// signal makes the loop check for changes.
func (w *Watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // a signal is pending
	}
}

// Changes delivers the names of changed files, sorted. The name of a file that was passed to
// SetPaths is the name that was passed; the name of a file in a directory begins with the
// directory's path. If a directory passed to SetPaths appears or disappears, its path is delivered.
// Changes that are not received are merged with later ones. A change that is undone before it is
// received is dropped.
func (w *Watcher) Changes() <-chan []string { return w.changes }

// Name returns the name of this component in logs and errors.
func (w *Watcher) Name() string { return "watch" }

// Run watches until ctx ends, and then returns nil. It also reports changes between SetPaths and
// Run.
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
		// fsnotify may hold its lock until an error is received, so this goroutine must not call
		// fsnotify.
		reading.Go(func() {
			for err := range inner.Errors {
				if errors.Is(err, unix.EINVAL) {
					continue // expected: the watch of a moved file has been removed already
				}
				select {
				case lost <- err:
				default: // one pending error suffices, because it causes a scan of all paths
				}
			}
		})
		defer func() { _ = inner.Close() }() // an error does not matter
	}
	points := make(chan []string)
	if table, err := openMounts(); err != nil {
		w.options.Logger.Warn("cannot detect changes of mounts", "error", err)
	} else {
		reading.Go(func() {
			table.await(func(changed []string) {
				select {
				case points <- changed:
				case <-ctx.Done():
				}
			})
		})
		// the file was only read, so an error does not matter
		defer func() { _ = table.file.Close() }()
	}
	w.tree.folders.attach(inner)
	defer w.tree.folders.attach(nil)
	w.locked((*tree).invalidate)
	w.MarkReady()
	return w.loop(ctx, events, points, lost)
}

// loop delivers batches of changes, and starts scans when events or polls are due.
func (w *Watcher) loop(
	ctx context.Context, events <-chan event, mounts <-chan []string, lost <-chan error,
) error {
	debounce := debouncer{delays: &w.delays}
	quiet := time.NewTimer(debounce.touch(time.Now()))
	defer quiet.Stop()
	var poll <-chan time.Time // nil: no path must be polled
	var offered batch
	var rest time.Time // earliest time of the next scan
	scan := func() time.Duration {
		began := time.Now()
		w.mu.Lock()
		jobs := w.begin(slices.Collect(maps.Values(w.tree.roots)))
		w.mu.Unlock()
		if !w.await(jobs) {
			// a file system did not respond; waiting for it uses no CPU time, so no rest is due
			return 0
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

// debouncer determines when a burst of changes is over: Debounce after its last change, but at most
// MaxDelay after its first. The delays may be replaced between two calls.
type debouncer struct {
	delays *atomic.Pointer[Delays]
	first  time.Time // first change of the burst; zero: no burst
}

// touch records a change at the time now. It returns the time until the burst is over, if no
// further change is recorded.
func (d *debouncer) touch(now time.Time) time.Duration {
	if d.first.IsZero() {
		d.first = now
	}
	delays := d.delays.Load()
	return max(0, min(delays.Debounce, d.first.Add(delays.MaxDelay).Sub(now)))
}

// reset ends the burst.
func (d *debouncer) reset() { d.first = time.Time{} }
