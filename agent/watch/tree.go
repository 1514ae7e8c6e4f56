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
	unread   bool // see Options.ReportWithoutReading
	folders  *folders
	roots    map[string]*root    // by path, in the form passed to SetPaths
	pending  map[*entry]struct{} // entries that have changed and were not delivered yet
	changed  bool                // a file's content has changed since the flag was reset
	reads    int                 // number of files read so far, for tests
}

// root is one path of SetPaths, with everything that was found below it. Only its job changes
// entries, and may therefore read them without holding the lock.
type root struct {
	key        string // the path in the form passed to SetPaths
	name, path string // name under which the path is reported, and its absolute path
	recursive  bool
	suffixes   []string
	entries    map[string]*entry // by name; always contains the root itself
	scan                         // result of the last scan

	job *job // job that is running; nil: none
	// the first job has ended; later differences from its result are changes
	baseline bool
	// links or folders on the path may have changed, so the root must be scanned again
	stale bool
	// the mode of a folder on the path may have changed, so access to the files may have, too
	access  bool
	written map[*entry]struct{} // entries to read at the next job, unless it scans the root
}

// entry is a file below a root, or the root itself.
type entry struct {
	root  *root
	name  string // name under which Changes reports it
	path  string // path without symbolic links; "": the name leads to no file
	stamp stamp
	// content that was read last; content that was delivered last, or read by SetPaths
	current, reported content
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

// set replaces the watched paths of the tree by paths, and returns their roots.
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

// event is a change that inotify reports for a path. An empty path means that inotify lost events.
type event struct {
	path string
	op   fsnotify.Op
}

// event records which paths the next job must scan or read because of an event, and reports whether
// there are any.
func (t *tree) event(of event) (concerns bool) {
	if of.path == "" { // inotify lost events
		t.folders.sweep(nil) // the next scan starts new watches
		t.invalidate()
		return len(t.roots) > 0
	}
	removed := of.op.Has(fsnotify.Remove) || of.op.Has(fsnotify.Rename)
	if removed || of.op.Has(fsnotify.Create) {
		// the kernel has ended the watch, or it is of an earlier file at this path
		t.folders.forget(of.path)
	}
	for _, r := range t.roots {
		names := r.files[of.path]
		switch {
		case r.job != nil && r.job.scan: // the path may be one that the running scan finds
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

// mounted records that file systems were mounted or unmounted at points, and reports whether a path
// of SetPaths must be scanned because of that.
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

// due reports whether a path of SetPaths must be scanned.
func (t *tree) due() bool {
	for _, r := range t.roots {
		if r.due() {
			return true
		}
	}
	return false
}

func (r *root) due() bool { return r.job == nil && (r.stale || len(r.written) > 0) }

// polled reports whether a path of SetPaths must be polled. If due is set, the time of the poll has
// come, and polled makes the next scan include these paths.
func (t *tree) polled(due bool) (polled bool) {
	for _, r := range t.roots {
		if r.polled && r.job == nil {
			r.stale, polled = r.stale || due, true
		}
	}
	return polled
}

// compare makes e pending if its content differs from what was reported last; otherwise e is no
// longer pending.
func (t *tree) compare(e *entry) {
	if e.current != e.reported {
		t.pending[e] = struct{}{}
	} else {
		delete(t.pending, e)
	}
}

// sweep ends the watches that are not needed for any path of SetPaths, unless a job is running.
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

// batch is a set of changes that are delivered together.
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
	b.names = slices.Compact(b.names) // two paths of SetPaths may contain the same file
	return b
}

// delivered records that the receiver has received b.
func (t *tree) delivered(b batch) {
	for e, state := range b.state {
		e.reported = state
		if _, pending := t.pending[e]; pending { // SetPaths may have removed e since
			t.compare(e)
		}
	}
}
