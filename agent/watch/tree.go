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
	roots    map[string]*root    // by path as given to Set
	pending  map[*entry]struct{} // changed and not delivered
	all      bool                // the next scan follows all paths
	written  map[*entry]struct{} // otherwise, it reads these
	// For tests: whether Run has begun, and the number of files hashed so far.
	attached bool
	reads    int
}

// root is one path of Set with everything that was found below it.
type root struct {
	name, path string // as reported; absolute
	recursive  bool
	suffixes   []string
	entries    map[string]*entry // by name, always with the root's own
	scan                         // the last one
}

// entry is a file, or the root itself.
type entry struct {
	root      *root
	name      string // as reported
	path      string // without symbolic links; "" if it leads nowhere
	stamp     stamp
	now, told content // last read; last delivered, or read by Set
}

func newTree(suffixes []string, logger *slog.Logger) *tree {
	return &tree{
		suffixes: suffixes,
		folders:  &folders{logger: logger, watched: map[string]stamp{}, warned: map[string]bool{}},
		roots:    map[string]*root{},
		pending:  map[*entry]struct{}{},
		all:      true,
		written:  map[*entry]struct{}{},
	}
}

// set replaces the roots. What a new one holds now is its baseline.
func (t *tree) set(paths []string) error {
	var failed []error
	wanted := map[string]bool{}
	for _, path := range paths {
		wanted[path] = true
		if t.roots[path] != nil {
			continue
		}
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
		r := &root{
			name: name, path: absolute, recursive: recursive,
			suffixes: t.suffixes, entries: map[string]*entry{},
		}
		t.roots[path] = r
		t.rescan(r)
		for _, e := range r.entries {
			e.told = e.now
			t.compare(e)
		}
	}
	for path, r := range t.roots {
		if !wanted[path] {
			delete(t.roots, path)
			for _, e := range r.entries {
				delete(t.pending, e)
				delete(t.written, e)
			}
		}
	}
	t.sweep()
	return errors.Join(failed...)
}

// attach makes scans watch folders with inner. With a nil inner, only periodic scans find changes.
func (t *tree) attach(inner *fsnotify.Watcher) {
	t.folders.inner = inner
	if inner != nil && t.folders.add == nil {
		t.folders.add = inner.Add
	}
	t.attached = true
}

// detach stops watching; the caller closes inner.
func (t *tree) detach() {
	t.folders.inner, t.folders.add = nil, nil
	clear(t.folders.watched)
}

// event records what the next scan must look at, and reports whether that is anything.
func (t *tree) event(event fsnotify.Event) (concerns bool) {
	removed := event.Has(fsnotify.Remove | fsnotify.Rename)
	if removed {
		t.folders.forget(event.Name) // the watch ended, or is another folder's by now
	}
	for _, r := range t.roots {
		names := r.files[event.Name]
		switch {
		case names != nil && !removed && !(event.Has(fsnotify.Create) && leads(event.Name)):
			for _, name := range names {
				t.written[r.entries[name]] = struct{}{}
			}
			concerns = true
		case names != nil || r.depends(event):
			t.all, concerns = true, true
		}
	}
	return concerns
}

// scan reads the files that were written, or follows all paths again and reads the files that may
// have changed. It reports whether any content did.
func (t *tree) scan() (changed bool) {
	if t.all {
		for _, r := range t.roots {
			changed = t.rescan(r) || changed
		}
		t.sweep()
	} else {
		for e := range t.written {
			changed = t.read(e) || changed
		}
	}
	t.all = false
	clear(t.written)
	return changed
}

// rescan is scan for one root, without ending watches.
func (t *tree) rescan(r *root) (changed bool) {
	r.scan = scanRoot(r, t.folders)
	paths := map[string]string{r.name: r.end}
	for path, names := range r.files {
		for _, name := range names {
			paths[name] = path
		}
	}
	for name := range paths {
		if r.entries[name] == nil {
			r.entries[name] = &entry{root: r, name: name}
		}
	}
	for name, e := range r.entries {
		e.path = paths[name]
		changed = t.read(e) || changed
	}
	return changed
}

// read looks at what e holds now, and reports whether that changed.
func (t *tree) read(e *entry) bool {
	before := e.now
	switch {
	case e.path == "":
		e.now, e.stamp = content{}, stamp{}
	case e.root.places[e.path].listed:
		e.now, e.stamp = content{kind: directory}, stamp{}
	default:
		then := e.stamp
		e.now, e.stamp = readContent(e.path, e.now, then, t.unread)
		if e.stamp != then || then == (stamp{}) {
			t.reads++
		}
	}
	t.compare(e)
	return e.now != before
}

// compare decides whether e is pending, and drops the entry of a removed file once delivered.
func (t *tree) compare(e *entry) {
	if e.now != e.told {
		t.pending[e] = struct{}{}
		return
	}
	delete(t.pending, e)
	if e.path == "" && e.name != e.root.name {
		delete(e.root.entries, e.name)
	}
}

// sweep ends the watch of folders that no root needs.
func (t *tree) sweep() {
	needed := map[string]bool{}
	for _, r := range t.roots {
		for path, p := range r.places {
			if p.watched {
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
		b.state[e] = e.now
		b.names = append(b.names, e.name)
	}
	slices.Sort(b.names)
	b.names = slices.Compact(b.names) // two paths of Set may report a file by one name
	return b
}

// delivered records that b was received.
func (t *tree) delivered(b batch) {
	for e, state := range b.state {
		e.told = state
		if _, pending := t.pending[e]; pending { // else Set has dropped it
			t.compare(e)
		}
	}
}
