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
	watched scope
	points  map[string]nodes // by name: whose way leads through it
	looks   nodes            // whose way needs its entries watched
	ends    nodes            // whose way ends here
	lists   nodes            // directories whose entries are in it
}

// at is the folder of a path.
func (t *tree) at(path string) *folder {
	f := t.folders[path]
	if f == nil {
		f = &folder{points: map[string]nodes{}, looks: nodes{}, ends: nodes{}, lists: nodes{}}
		t.folders[path] = f
		t.idle[path] = struct{}{}
	}
	return f
}

// look makes sure that the folder's entries are watched before somebody looks into it.
func (t *tree) look(path string) {
	f := t.at(path)
	if f.watched == entries || t.kernel == nil {
		return
	}
	err := t.watch(path, entries)
	switch {
	case err == nil:
		delete(t.blind, path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		// It has just gone: its event, or that of the folder above, says so.
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

// hold makes sure that the folder which has this path now is watched itself. That one has it for which a watch may stand is not known
// before the kernel is asked.
func (t *tree) hold(path string) bool {
	if t.kernel == nil {
		return false
	}
	how := itself
	if f := t.folders[path]; f != nil {
		how = max(how, f.watched)
	}
	if t.watch(path, how) == nil {
		return true
	}
	if f := t.folders[path]; f != nil {
		f.watched = unwatched // which folder has the path is not known
		if how == entries {
			t.look(path) // others need them
		}
	}
	return false // whoever depends on it looks into the folder above
}

// watch watches the folder that has this path now. After an error the one that had it before is watched as it was.
func (t *tree) watch(path string, how scope) error {
	replaced, err := t.kernel.add(path, how)
	if replaced {
		t.replaced[path] = struct{}{}
	}
	if err == nil {
		t.at(path).watched = how
	}
	return err
}

// release returns the folder, of which somebody is about to let go.
func (t *tree) release(path string) *folder {
	t.idle[path] = struct{}{}
	return t.folders[path]
}

// aim makes n depend on what was found of its path.
func (t *tree) aim(n *node, found resolution) {
	points, looks := found.points, found.looks
	if n.end != nil {
		t.release(n.end.folder).ends.remove(n)
	}
	if n.end = found.end; n.end != nil {
		t.at(n.end.folder).ends.add(n)
	}
	for _, path := range looks {
		t.folders[path].looks.add(n)
	}
	for _, path := range n.looks {
		if !slices.Contains(looks, path) {
			t.release(path).looks.remove(n)
		}
	}
	n.looks = slices.Clip(looks)
	for _, p := range points {
		set := t.at(p.folder).points[p.name]
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

// sweep ends the watch of folders that serve nobody any more, and of entries that nobody needs.
func (t *tree) sweep() {
	for path := range t.idle {
		f := t.folders[path]
		if f == nil || len(f.looks) > 0 || len(f.lists) > 0 {
			continue
		}
		delete(t.blind, path)
		if len(f.points) > 0 {
			if f.watched == entries {
				_ = t.watch(path, itself) // or it stays as it is: more than is needed
			}
			continue
		}
		t.leave(path, f)
		delete(t.folders, path)
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
	if event.left {
		for n := range f.ends {
			if !n.end.stands() && !slices.Contains(through, n) {
				through = append(through, n)
			}
		}
	}
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

// catchUp takes in what the kernel does not tell any more: that a folder was replaced which another path was found to lead through
// before the event was read. It says whether that concerns any node.
func (t *tree) catchUp() bool {
	concerns := false
	for len(t.replaced) > 0 {
		for path := range t.replaced {
			delete(t.replaced, path)
			concerns = t.event(kernelEvent{folder: filepath.Dir(path), name: filepath.Base(path)}) || concerns
		}
	}
	return concerns
}

// unwatch ends the watch of the folder that had this path, and of those below it: another one may have it by now.
// Whoever depends on them is located again, and that watches the folders that are there.
func (t *tree) unwatch(path string) {
	if t.folders[path] == nil {
		return
	}
	for below, f := range t.folders {
		if below == path || strings.HasPrefix(below, path+"/") {
			t.leave(below, f)
		}
	}
}

// leave ends the watch of a folder, also one of which only the kernel's part is left.
func (t *tree) leave(path string, f *folder) {
	if f.watched = unwatched; t.kernel != nil {
		t.kernel.remove(path)
	}
}

// rescan looks at everything anew, since events were lost or cannot be had. Files whose stamp is the same are not read.
func (t *tree) rescan() {
	for path, f := range t.folders {
		t.leave(path, f)
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
		f.watched = unwatched
	}
	t.kernel = nil
	clear(t.blind)
}
