// Package store reads files of Istio's YAML and keeps the objects they hold: of each the last good
// version, and what is wrong with the newest. It reads again only what changed.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// Options says what to read.
type Options struct {
	Paths     []string // files, and directories with all YAML and JSON below them
	Namespace string   // of objects that name none

	// Validate finds what is wrong with an object's spec; one with an error is not taken. nil:
	// nothing is.
	Validate func(*object.Object) []object.Finding

	// LastGood are what a store before this one held on to (Held); those that name no namespace are
	// in that of this one.
	LastGood []*object.Object
}

// Change is an object before and after; nil where there is none.
type Change struct{ Old, New *object.Object }

// Store holds the objects of the files. It is not safe for concurrent use.
type Store struct {
	options Options
	files   map[string]*file
	// by file: last good versions of what is bad now, and of files not looked at yet
	held       map[string][]*object.Object
	candidates map[object.Key][]*object.Object // of one key, the oldest first; the first one counts
	roots      map[string]object.Problem       // of Options.Paths that cannot be read
	// of Options.Paths, when they were last looked through
	devices    map[string]uint64
	duplicates map[object.Key][]object.Problem
	// what is wrong in all files, by place: a change sorts it again only if it has to; nil: to be
	// made anew
	ofFiles []object.Problem
}

// New returns an empty store.
func New(options Options) *Store {
	options.Paths = slices.Clone(options.Paths)
	for i, path := range options.Paths {
		options.Paths[i] = filepath.Clean(path)
	}
	s := &Store{options: options, files: map[string]*file{}, held: map[string][]*object.Object{},
		candidates: map[object.Key][]*object.Object{},
		roots:      map[string]object.Problem{}, devices: map[string]uint64{},
		duplicates: map[object.Key][]object.Problem{}}
	for _, o := range options.LastGood {
		s.held[o.File] = append(s.held[o.File], o.In(options.Namespace))
	}
	return s
}

// Load reads everything that changed since it was last read.
func (s *Store) Load() []Change { return s.Reload(s.options.Paths) }

// Reload reads what changed at the given paths: files (read whatever their time stamps say) and
// directories (files below them whose time stamps moved). A trailing "/..." is ignored. What is
// gone of a folder is withdrawn; of a configured path that is gone itself everything stays as it
// was last read, and a problem says so.
func (s *Store) Reload(paths []string) []Change {
	var read, gone, unseen []string
	vanished := map[string]bool{}
	for _, path := range paths {
		path = filepath.Clean(strings.TrimSuffix(path, "/..."))
		root := s.rootOf(path)
		if root == "" {
			continue
		}
		if _, asked := vanished[root]; !asked {
			vanished[root] = s.vanished(root)
		}
		if vanished[root] {
			continue
		}
		if _, wrong := s.roots[root]; wrong {
			path = root // it may be there again
		}
		if known := s.files[path]; known != nil {
			read = append(read, path)
			continue
		}
		changed, vanished, hidden := s.compare(path, path == root)
		read, gone, unseen = append(read, changed...), append(gone, vanished...),
			append(unseen, hidden...)
	}
	read = append(read, unseen...)
	slices.Sort(read)
	changes := s.apply(slices.Compact(read), gone)
	s.holdUnseen(unseen)
	s.forget()
	return changes
}

// rootOf returns the configured path that path is or is below, "" if there is none.
func (s *Store) rootOf(path string) string {
	for _, root := range s.options.Paths {
		if within(root, path) {
			return root
		}
	}
	return ""
}

// vanished tells whether a configured path that held files is gone: removed or renamed, or
// unmounted, which leaves an empty folder of another file system. Nobody means that by emptying it,
// and to withdraw all that it held would cut off everyone.
func (s *Store) vanished(root string) bool {
	held := 0
	for known := range s.files {
		if within(root, known) {
			held++
		}
	}
	info, err := os.Stat(root)
	how := ""
	switch {
	case held == 0:
	case errors.Is(err, fs.ErrNotExist):
		how = "is gone"
	case err == nil && info.IsDir() && s.devices[root] != fingerprintOf(info).device &&
		holdsNothing(root):
		how = "is empty, and on another file system than before"
	}
	if how == "" {
		return false
	}
	what := "file stays"
	if held > 1 {
		what = "files stay"
	}
	s.roots[root] = object.Problem{File: root, Line: 1, Severity: condition.Warning,
		Message: fmt.Sprintf("%s: its %d %s in force as last read", how, held, what),
		Cure: "rename or mount it back, or take it out of [discovery] files and restart the " +
			"agent"}
	return true
}

func holdsNothing(folder string) bool {
	nothing := true
	err := scan(folder, func(string, fs.FileInfo) { nothing = false })
	return err == nil && nothing
}

// compare finds the files at and below a path that changed, those that are gone, and where not all
// can be looked through those that may be either: what cannot be listed now is not thereby deleted,
// and reading it tells.
func (s *Store) compare(path string, isRoot bool) (changed, gone, unseen []string) {
	present := map[string]bool{}
	err := scan(path, func(found string, info fs.FileInfo) {
		if found == path && !isRoot && !isMesh(filepath.Base(path)) {
			return
		}
		present[found] = true
		known := s.files[found]
		if print := fingerprintOf(info); known == nil || known.print != print ||
			print.fresh(known.read) {
			changed = append(changed, found)
		}
	})
	if isRoot {
		delete(s.roots, path)
		if info, err := os.Stat(path); err == nil {
			s.devices[path] = fingerprintOf(info).device
		}
	}
	if err != nil && isRoot {
		severity, message := condition.Warning, fmt.Sprintf("cannot be read: %v", err)
		if errors.Is(err, fs.ErrNotExist) {
			severity, message = condition.Info, "does not exist"
		}
		s.roots[path] = object.Problem{File: path, Line: 1, Severity: severity, Message: message,
			Cure: "create it or take it out of [discovery] files"}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return changed, nil, s.unseen(path, present)
	}
	for known := range s.files {
		if within(path, known) && !present[known] {
			gone = append(gone, known)
		}
	}
	return changed, gone, nil
}

// within tells whether a path is a folder or file, or below it.
func within(folder, path string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// apply reads files, all processors at once, and folds what they hold into the store.
func (s *Store) apply(read, gone []string) []Change {
	results := make([]*file, len(read))
	work := make(chan int)
	var readers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(read)) {
		readers.Go(func() {
			for i := range work {
				results[i] = readFile(read[i], s.before(read[i]), s.options)
			}
		})
	}
	for i := range read {
		work <- i
	}
	close(work)
	readers.Wait()

	before := map[object.Key]*object.Object{}
	for _, path := range gone {
		s.replace(path, nil, before)
	}
	for i, path := range read {
		s.replace(path, results[i], before)
	}
	return s.settle(before)
}

// replace puts what a file holds now (nil: it is gone) in place of what it held. before gets the
// objects that counted.
func (s *Store) replace(path string, next *file, before map[object.Key]*object.Object) {
	touch := func(key object.Key) {
		if _, ok := before[key]; !ok {
			before[key] = nil
			if all := s.candidates[key]; len(all) > 0 {
				before[key] = all[0]
			}
		}
	}
	var had, has []object.Problem
	if s.files[path] != nil {
		had = s.files[path].problems
	}
	same := map[*object.Object]bool{}
	if next != nil {
		has = next.problems
		for _, o := range next.objects {
			same[o] = true
		}
	}
	if previous := s.files[path]; previous != nil {
		for _, o := range previous.objects {
			if same[o] {
				delete(same, o)
				continue
			}
			touch(o.Key)
			if rest := slices.DeleteFunc(s.candidates[o.Key], func(x *object.Object) bool {
				return x == o
			}); len(rest) > 0 {
				s.candidates[o.Key] = rest
			} else {
				delete(s.candidates, o.Key)
			}
		}
	}
	if !slices.Equal(had, has) {
		s.ofFiles = nil
	}
	s.hold(path, next)
	if next == nil {
		delete(s.files, path)
		return
	}
	s.files[path] = next
	for _, o := range next.objects {
		if same[o] {
			touch(o.Key)
			all := s.candidates[o.Key]
			at, _ := slices.BinarySearchFunc(all, o, object.Age)
			s.candidates[o.Key] = slices.Insert(all, at, o)
		}
	}
}

// settle tells which objects count now in place of those before.
func (s *Store) settle(before map[object.Key]*object.Object) []Change {
	var changes []Change
	for key, previous := range before {
		delete(s.duplicates, key)
		all := s.candidates[key]
		var now *object.Object
		if len(all) > 0 {
			now = all[0]
			for _, o := range all[1:] {
				s.duplicates[key] = append(s.duplicates[key], object.Problem{File: o.File,
					Line: o.Line, Object: o.String(), Severity: condition.Warning,
					Message: fmt.Sprintf("is given at %s:%d too, which is older and counts",
						now.File, now.Line), Cure: "remove or rename one"})
			}
		}
		if now != previous {
			changes = append(changes, Change{Old: previous, New: now})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return object.Age(either(a), either(b)) })
	return changes
}

func either(c Change) *object.Object {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

// Problems returns what is wrong, by place. It is not to be changed.
func (s *Store) Problems() []object.Problem {
	if s.ofFiles == nil {
		s.ofFiles = []object.Problem{}
		for _, f := range s.files {
			s.ofFiles = append(s.ofFiles, f.problems...)
		}
		slices.SortFunc(s.ofFiles, object.Problem.Compare)
		s.ofFiles = slices.Compact(s.ofFiles)
	}
	if len(s.roots)+len(s.duplicates) == 0 {
		return s.ofFiles
	}
	all := slices.Clone(s.ofFiles)
	for _, p := range s.roots {
		all = append(all, p)
	}
	for _, p := range s.duplicates {
		all = append(all, p...)
	}
	slices.SortFunc(all, object.Problem.Compare)
	return all
}
