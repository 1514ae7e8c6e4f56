package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// tree holds the watched paths, their content and the changes to report. The Watcher's lock
// guards it.
type tree struct {
	suffixes []string
	unread   bool // see Options
	folders  *folders
	roots    map[string]*root    // by path as passed to Set
	pending  map[*entry]struct{} // changed and not delivered
	changed  bool                // a file's content has changed since the flag was reset
	reads    int                 // number of files read so far, for tests
}

// root is one path of Set with everything that was found below it. Only its job changes entries,
// and reads them without the lock.
type root struct {
	key        string // as passed to Set
	name, path string // name as reported, and absolute path
	recursive  bool
	suffixes   []string
	entries    map[string]*entry // by name, always with the root's own
	scan                         // the last result

	job      *job                // in progress; nil: none
	baseline bool                // the first job has ended: its result is the baseline
	stale    bool                // links or folders on the path may have changed: scan it again
	access   bool                // the mode of a folder on the path may have changed
	written  map[*entry]struct{} // entries to read, unless stale
}

// entry is a file, or the root itself.
type entry struct {
	root              *root
	name              string // as reported by Changes
	path              string // without symbolic links; "" if it leads nowhere
	stamp             stamp
	current, reported content // last read; last delivered, or read by Set
}

func newTree(suffixes []string, logger *slog.Logger) *tree {
	return &tree{
		suffixes: suffixes,
		folders: &folders{logger: logger, watched: map[string]stamp{}, shared: map[stamp][]string{},
			warned: map[string]bool{}},
		roots:   map[string]*root{},
		pending: map[*entry]struct{}{},
	}
}

// set replaces the roots and returns those of paths.
func (t *tree) set(paths []string) ([]*root, error) {
	var failed []error
	var all []*root
	wanted := map[string]bool{}
	for _, path := range paths {
		if !wanted[path] && t.roots[path] == nil {
			name, recursive := strings.CutSuffix(path, "/...")
			if recursive && name == "" {
				name = "/"
			}
			absolute, err := filepath.Abs(name)
			if path == "" {
				err = errors.New("empty path")
			}
			if err != nil {
				failed = append(failed, fmt.Errorf("watch %q: %w", path, err))
				continue
			}
			t.roots[path] = &root{key: path, name: name, path: absolute, recursive: recursive,
				suffixes: t.suffixes, entries: map[string]*entry{}, stale: true,
				written: map[*entry]struct{}{}}
		}
		if !wanted[path] {
			all = append(all, t.roots[path])
		}
		wanted[path] = true
	}
	for path, r := range t.roots {
		if !wanted[path] {
			delete(t.roots, path)
			for _, e := range r.entries {
				delete(t.pending, e)
			}
		}
	}
	t.sweep()
	return all, errors.Join(failed...)
}

// invalidate makes the next scan resolve all paths again.
func (t *tree) invalidate() {
	for _, r := range t.roots {
		r.stale = true
	}
}

// event is an event of a path. An empty path means that inotify lost events.
type event struct {
	path string
	op   fsnotify.Op
}

// event records which paths the next scan must read, and reports whether there are any.
func (t *tree) event(of event) (concerns bool) {
	if of.path == "" { // events were lost
		t.folders.sweep(nil) // the scan watches them anew
		t.invalidate()
		return len(t.roots) > 0
	}
	removed := of.op.Has(fsnotify.Remove) || of.op.Has(fsnotify.Rename)
	if removed || of.op.Has(fsnotify.Create) {
		t.folders.forget(of.path) // the watch has ended, or is of a former file at this path
	}
	for _, r := range t.roots {
		names := r.files[of.path]
		switch {
		case r.job != nil && r.job.scan: // the event may concern a path that the scan finds
			r.stale = true
			r.access = r.access || of.op.Has(fsnotify.Chmod)
		case names != nil && !removed && (!of.op.Has(fsnotify.Create) || !leads(of.path)):
			for _, name := range names {
				r.written[r.entries[name]] = struct{}{}
			}
		case names != nil || r.depends(of):
			r.stale = true
			r.access = r.access || of.op.Has(fsnotify.Chmod)
		default:
			continue
		}
		concerns = true
	}
	return concerns
}

// mounted records that mounts at points were added or removed, and reports whether a root must be
// scanned.
func (t *tree) mounted(points []string) (concerns bool) {
	t.folders.remounted(points)
	for _, r := range t.roots {
		onWay := func(point string) bool { _, on := r.nodes[point]; return on }
		if r.job != nil && r.job.scan || slices.ContainsFunc(points, onWay) {
			r.stale, concerns = true, true
		}
	}
	return concerns
}

// due reports whether a root must be scanned.
func (t *tree) due() bool {
	for _, r := range t.roots {
		if r.due() {
			return true
		}
	}
	return false
}

func (r *root) due() bool { return r.job == nil && (r.stale || len(r.written) > 0) }

// polled reports whether a root must be polled. If due, it makes the next scan include these roots.
func (t *tree) polled(due bool) (polled bool) {
	for _, r := range t.roots {
		if r.polled && r.job == nil {
			r.stale, polled = r.stale || due, true
		}
	}
	return polled
}

// compare updates whether e is pending.
func (t *tree) compare(e *entry) {
	if e.current != e.reported {
		t.pending[e] = struct{}{}
	} else {
		delete(t.pending, e)
	}
}

// sweep ends watches that no root needs, unless a scan is pending.
func (t *tree) sweep() {
	needed := map[string]bool{}
	for _, r := range t.roots {
		if r.job != nil {
			return
		}
		for path, n := range r.nodes {
			if n.watched {
				needed[path] = true
			}
		}
	}
	t.folders.sweep(needed)
}

// batch is a set of changes to be delivered.
type batch struct {
	names []string
	state map[*entry]content
}

func (t *tree) batch() batch {
	b := batch{state: make(map[*entry]content, len(t.pending))}
	for e := range t.pending {
		b.state[e] = e.current
		b.names = append(b.names, e.name)
	}
	slices.Sort(b.names)
	b.names = slices.Compact(b.names) // a file may be reported through two paths of Set
	return b
}

// delivered records that b was received.
func (t *tree) delivered(b batch) {
	for e, state := range b.state {
		e.reported = state
		if _, pending := t.pending[e]; pending { // Set may have dropped it
			t.compare(e)
		}
	}
}
