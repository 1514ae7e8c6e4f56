package watch

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// nodes is a set of nodes.
type nodes map[*node]struct{}

func (s nodes) add(n *node)    { s[n] = struct{}{} }
func (s nodes) remove(n *node) { delete(s, n) }

// folder is a folder that something depends on. Its path is free of symbolic links.
type folder struct {
	watched bool
	points  map[string]nodes // by name: whose way leads through it
	lists   nodes            // directories whose entries are in it
}

// look makes sure that the folder is watched before somebody looks into it.
func (t *tree) look(path string) {
	f := t.folders[path]
	if f == nil {
		f = &folder{points: map[string]nodes{}, lists: nodes{}}
		t.folders[path] = f
		t.idle[path] = struct{}{}
	}
	if f.watched || t.kernel == nil {
		return
	}
	err := t.kernel.add(path)
	switch {
	case err == nil:
		f.watched = true
		delete(t.blind, path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		// It has just gone: the event of the folder above says so.
	default:
		if _, known := t.blind[path]; !known {
			cure := "let the user of this process read it"
			if errors.Is(err, unix.ENOSPC) {
				cure = "raise fs.inotify.max_user_watches (sysctl)"
			}
			t.logger.Warn("a folder cannot be watched and is looked at every few seconds instead; "+cure,
				"folder", path, "interval", pollInterval, "error", err)
		}
		t.blind[path] = struct{}{}
	}
}

// release returns the folder, of which somebody is about to let go.
func (t *tree) release(path string) *folder {
	t.idle[path] = struct{}{}
	return t.folders[path]
}

// aim makes points what n depends on.
func (t *tree) aim(n *node, points []point) {
	for _, p := range points {
		set := t.folders[p.folder].points[p.name]
		if set == nil {
			set = nodes{}
			t.folders[p.folder].points[p.name] = set
		}
		set.add(n)
	}
	for _, p := range n.points {
		if slices.Contains(points, p) {
			continue
		}
		f := t.release(p.folder)
		if set := f.points[p.name]; set != nil {
			set.remove(n)
			if len(set) == 0 {
				delete(f.points, p.name)
			}
		}
	}
	n.points = slices.Clip(points)
}

// sweep ends the watch of folders that serve nobody any more.
func (t *tree) sweep() {
	for path := range t.idle {
		f := t.folders[path]
		if f == nil || len(f.points) > 0 || len(f.lists) > 0 {
			continue
		}
		if f.watched {
			t.kernel.remove(path)
		}
		delete(t.folders, path)
		delete(t.blind, path)
	}
	clear(t.idle)
}

// entries are the names in a folder.
func (t *tree) entries(path string) []string {
	opened, err := os.Open(path)
	if err == nil {
		defer func() { _ = opened.Close() }() // it was only read
		var names []string
		if names, err = opened.Readdirnames(-1); err == nil {
			return names
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.logger.Warn("a watched directory cannot be listed; let the user of this process read it", "error", err)
	}
	return nil
}

// event takes in what the kernel tells, and says whether it concerns any node.
func (t *tree) event(event kernelEvent) bool {
	f := t.folders[event.folder]
	if f == nil {
		return false
	}
	concerns := false
	through := slices.Collect(maps.Keys(f.points[event.name]))
	listing := slices.Collect(maps.Keys(f.lists))
	if !event.written {
		t.unwatch(filepath.Join(event.folder, event.name))
	}
	for _, n := range through {
		concerns = true
		if event.written {
			t.dirty[n] = struct{}{}
		} else {
			t.locate(n)
		}
	}
	for _, directory := range listing {
		if directory.listed != event.folder || !t.wants(directory, event.name) {
			continue
		}
		known := directory.children[event.name] != nil
		child := t.child(directory, event.name)
		if known && event.written {
			t.dirty[child] = struct{}{}
		} else {
			t.locate(child)
		}
		concerns = concerns || known || !child.gone
		if !known && child.gone {
			t.prune(child)
			delete(t.dirty, child)
		}
	}
	t.sweep()
	return concerns
}

// unwatch ends the watch of the folder that had this path, and of those below it: another one may have it by now.
// Whoever depends on them is located again, and that watches the folders that are there.
func (t *tree) unwatch(path string) {
	if t.folders[path] == nil || t.kernel == nil {
		return
	}
	for below, f := range t.folders {
		if f.watched && (below == path || strings.HasPrefix(below, path+"/")) {
			t.kernel.remove(below)
			f.watched = false
		}
	}
}

// rescan looks at everything anew, since events were lost or cannot be had. Files whose stamp is the same are not read.
func (t *tree) rescan() {
	for path, f := range t.folders {
		if f.watched {
			t.kernel.remove(path)
			f.watched = false
		}
	}
	for _, root := range t.roots {
		t.locate(root)
	}
	t.sweep()
}

// attach starts watching, and marks everything to be compared with what it was when it was set.
func (t *tree) attach(source *kernel) {
	t.kernel = source
	t.rescan()
}

// detach ends watching; the kernel's side is closed by its owner.
func (t *tree) detach() {
	for _, f := range t.folders {
		f.watched = false
	}
	t.kernel = nil
	clear(t.blind)
}
