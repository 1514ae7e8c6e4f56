package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
)

// node is a path of Set, or an entry of a directory that is watched.
type node struct {
	name      string // as it is told
	path      string // of a root: absolute; of an entry: its name in the parent's folder
	parent    *node  // nil: a root
	recursive bool   // its sub-directories are watched too

	points   []point          // what it depends on; of an entry without the first, which the parent's folder holds
	looks    []string         // the folders whose entries must be watched for it, of an entry but the parent's
	end      *end             // where the path ends that leads nowhere; nil: nobody needs to know
	real     string           // where it leads; "" nowhere
	listed   string           // the folder whose entries are the children; "" where it is not a directory
	children map[string]*node // by name in listed
	gone     bool             // an entry that is no longer there, or is none that counts

	stamp stamp
	now   content // when it was last read
	told  content // to the taker of Changes, or when it was set
}

// tree holds the nodes, what is watched for their sake, and which of them changed. It belongs to the Watcher's lock.
type tree struct {
	suffixes []string
	access   bool // of files is a part of what counts
	logger   *slog.Logger
	kernel   *kernel // nil before Run

	roots    map[string]*node // by path as given
	folders  map[string]*folder
	idle     map[string]struct{} // folders that may serve no node any more
	blind    map[string]struct{} // folders that cannot be watched
	replaced map[string]struct{} // folders of which no event says that another one has their path: see catchUp
	dirty    map[*node]struct{}  // to be read again
	pending  map[*node]struct{}  // changed, and not told yet
	reads    int                 // files looked at so far: the cost follows the changes
}

func newTree(suffixes []string, logger *slog.Logger) *tree {
	return &tree{
		suffixes: suffixes,
		logger:   logger,
		roots:    map[string]*node{},
		folders:  map[string]*folder{},
		idle:     map[string]struct{}{},
		blind:    map[string]struct{}{},
		replaced: map[string]struct{}{},
		dirty:    map[*node]struct{}{},
		pending:  map[*node]struct{}{},
	}
}

// set makes paths the roots. New ones are read at once: what they hold is not a change.
func (t *tree) set(paths []string) error {
	before := t.dirty
	t.dirty = map[*node]struct{}{}
	var failed []error
	wanted := map[string]struct{}{}
	for _, path := range paths {
		wanted[path] = struct{}{}
		if t.roots[path] != nil {
			continue
		}
		if path == "" {
			failed = append(failed, errors.New(`watch "": not a path`))
			continue
		}
		name, recursive := strings.CutSuffix(path, "/...")
		if recursive && name == "" {
			name = "/"
		}
		absolute, err := filepath.Abs(name)
		if err != nil {
			failed = append(failed, fmt.Errorf("watch %q: not an absolute path, and the working directory is unknown (%w)", path, err))
			continue
		}
		root := &node{name: name, path: absolute, recursive: recursive}
		t.roots[path] = root
		t.locate(root)
	}
	for n := range t.dirty {
		t.read(n)
		n.told = n.now
		t.prune(n)
	}
	t.dirty = before
	for path, root := range t.roots {
		if _, ok := wanted[path]; !ok {
			t.drop(root)
			delete(t.roots, path)
		}
	}
	t.sweep()
	return errors.Join(failed...)
}

// locate finds out where n leads now, watches the way there, lists it if it is a directory, and marks it to be read.
func (t *tree) locate(n *node) {
	t.dirty[n] = struct{}{}
	var found resolution
	switch {
	case n.parent == nil:
		found = resolve("/", n.path, t)
	case n.parent.listed != "":
		found = resolve(n.parent.listed, n.path, t)
		n.gone = len(found.points) == 1 && found.info == nil
		found.points = found.points[1:]
		found.looks = slices.DeleteFunc(found.looks, func(folder string) bool { return folder == n.parent.listed })
	default:
		n.gone = true
	}
	if found.err != nil {
		t.logger.Debug("a watched path leads nowhere", "path", n.name, "error", found.err)
	}
	list := ""
	if found.info != nil && found.info.IsDir() {
		switch {
		case t.forOthers(n): // not a file yet
		case n.parent == nil, n.parent.recursive && !n.within(found.real):
			list = found.real
		default:
			n.gone = true
		}
	} else if n.parent != nil && !t.hasSuffix(n.path) {
		n.gone = true // seen only because it might have been a directory
	}
	n.real = found.real
	t.aim(n, found)
	t.list(n, list)
}

// forOthers says whether n is a file that another process reads: see Options.Access.
func (t *tree) forOthers(n *node) bool { return t.access && n.parent == nil && !n.recursive }

// within says whether folder is one that n or a directory above it lists: a symbolic link that leads back.
func (n *node) within(folder string) bool {
	for above := n.parent; above != nil; above = above.parent {
		if above.listed == folder {
			return true
		}
	}
	return false
}

// list makes the entries of folder the children of n ("": none). The children's nodes stay as long as their end is not told.
func (t *tree) list(n *node, folder string) {
	if n.listed != folder {
		if n.listed != "" {
			t.release(n.listed).lists.remove(n)
		}
		n.listed = folder
	}
	names := map[string]struct{}{}
	if folder != "" {
		t.look(folder)
		t.folders[folder].lists.add(n)
		for _, name := range t.entries(folder) {
			if t.wants(n, name) {
				names[name] = struct{}{}
			}
		}
	}
	for _, child := range n.children {
		if _, ok := names[child.path]; !ok {
			t.locate(child)
		}
	}
	for name := range names {
		t.locate(t.child(n, name))
	}
}

// child is the node of an entry of directory n, new where there was none.
func (t *tree) child(n *node, name string) *node {
	if child := n.children[name]; child != nil {
		return child
	}
	if n.children == nil {
		n.children = map[string]*node{}
	}
	child := &node{name: filepath.Join(n.name, name), path: name, parent: n, recursive: n.recursive}
	n.children[name] = child
	return child
}

// wants says whether an entry of directory n of this name may count.
func (t *tree) wants(n *node, name string) bool {
	return !strings.HasPrefix(name, ".") && (n.recursive || t.hasSuffix(name))
}

func (t *tree) hasSuffix(name string) bool {
	return len(t.suffixes) == 0 || slices.ContainsFunc(t.suffixes, func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

// drop forgets a node and what is below it.
func (t *tree) drop(n *node) {
	t.aim(n, resolution{})
	if n.listed != "" {
		t.release(n.listed).lists.remove(n)
		n.listed = ""
	}
	delete(t.dirty, n)
	delete(t.pending, n)
	for _, child := range n.children {
		t.drop(child)
	}
}
