// Package store reads files with Istio's YAML, and inputs of other sources, and holds their objects:
// the last good version of each, and the problems of the newest one. It reads only what has changed.
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

// Options configures a store.
type Options struct {
	Paths     []string // files, and directories whose YAML and JSON files are read recursively
	Namespace string   // default namespace

	// Validate returns the problems of an object's spec; an error refuses the object. nil: no
	// validation
	Validate func(*object.Object) []object.Finding

	// ValidateAll checks EnvoyFilters that were read at the same time, each of which Validate found
	// valid or Unknown. nil: no check
	ValidateAll func([]*object.Object) []Verdict

	// Tolerate puts objects of the first Load (with Await, until each path exists) into force in
	// which only something Unknown is an error, as last good versions, unless there are some.
	Tolerate bool

	// Await makes each path that does not exist, or cannot be listed, an error, see Unlisted, until it
	// can be or Proceed is called: it may be on a file system that is not mounted yet.
	Await bool

	// LastGood holds the objects that an earlier store held (Held). Those without a namespace have
	// this store's default namespace.
	LastGood []*object.Object

	// Sources are the names of the sources of Take, and FilesSource, in order of precedence: of two
	// objects with the same key, that of the earlier source is in force. nil: files only
	Sources []string
}

// Store holds the objects of the files. It is not safe for concurrent use.
type Store struct {
	options Options
	files   map[string]*file
	// by file: last good versions of invalid objects, and of files that were not found yet
	held map[string][]*object.Object
	// objects with the same key, see compareCandidates; the first one is in force
	candidates map[object.Key][]*object.Object
	ranks      map[string]int  // index in Options.Sources
	complete   map[string]bool // sources that have delivered all of their inputs
	// services of registries by host, those of the earliest source first
	registered map[string][]*object.Object
	roots      map[string]object.Problem // unreadable Options.Paths
	awaited    map[string]bool           // Options.Paths that could not be listed yet, with Await
	listed     map[string]bool           // Options.Paths whose files have all been found once
	// file systems of Options.Paths at their last scan
	devices    map[string]uint64
	duplicates map[object.Key][]object.Problem
	// problems of all files, sorted; nil: must be rebuilt
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
		listed:     map[string]bool{},
		duplicates: map[object.Key][]object.Problem{},
		ranks:      map[string]int{}, complete: map[string]bool{},
		registered: map[string][]*object.Object{}}
	for i, source := range options.Sources {
		s.ranks[source] = i
	}
	if options.Await {
		s.awaited = map[string]bool{}
		for _, path := range options.Paths {
			s.awaited[path] = true
		}
	}
	for _, o := range options.LastGood {
		s.held[o.File] = append(s.held[o.File], o.In(options.Namespace))
	}
	return s
}

// Load reads all files that changed since they were last read.
func (s *Store) Load() []object.Change {
	return append(s.Reload(s.options.Paths), s.takeDue()...)
}

// Reload reads the given files, regardless of their time stamps, and the files below the given
// directories whose time stamps changed. A trailing "/..." is ignored. Objects of deleted files are
// removed. If a configured path itself disappears, its objects stay and a problem is reported.
func (s *Store) Reload(paths []string) []object.Change {
	var read, gone, unseen []string
	vanished := map[string]bool{}
	for _, path := range paths {
		path = filepath.Clean(strings.TrimSuffix(path, "/..."))
		root := s.rootOf(path)
		if root == "" {
			continue
		}
		if _, requested := vanished[root]; !requested {
			vanished[root] = s.vanished(root)
		}
		if vanished[root] {
			continue
		}
		if _, wrong := s.roots[root]; wrong {
			path = root // it may exist again
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
	changes := s.apply(slices.Compact(read), gone, readFile)
	s.holdUnseen(unseen)
	s.forget()
	return changes
}

// rootOf returns the configured path that contains path, or "".
func (s *Store) rootOf(path string) string {
	for _, root := range s.options.Paths {
		if within(root, path) {
			return root
		}
	}
	return ""
}

// vanished reports whether a configured path that held files has disappeared: removed, renamed or
// unmounted, which leaves an empty directory of another file system. That is hardly meant to delete
// all objects, which would cut off all traffic.
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
		Fix: "rename or mount it back, or take it out of [discovery] files and restart the " +
			"agent"}
	return true
}

func holdsNothing(folder string) bool {
	nothing := true
	err := scan(folder, func(string, fs.FileInfo) { nothing = false })
	return err == nil && nothing
}

// compare returns the changed and the deleted files at and below a path. If the scan is incomplete,
// unseen holds the files that may be either: a file in an unreadable directory is not deleted, and
// reading it reports the error.
func (s *Store) compare(path string, isRoot bool) (changed, gone, unseen []string) {
	present := map[string]bool{}
	err := scan(path, func(found string, info fs.FileInfo) {
		if found == path && !isRoot && !isMesh(filepath.Base(path)) {
			return
		}
		present[found] = true
		known := s.files[found]
		if print := fingerprintOf(info); known == nil || known.print != print ||
			print.fresh(known.read) || known.due() {
			changed = append(changed, found)
		}
	})
	if isRoot {
		delete(s.roots, path)
		s.listed[path] = s.listed[path] || err == nil
		if info, err := os.Stat(path); err == nil {
			s.devices[path] = fingerprintOf(info).device
		}
	}
	if isRoot && !errors.Is(err, fs.ErrNotExist) && rootError(path) == nil {
		delete(s.awaited, path)
	}
	if err != nil && isRoot {
		s.roots[path] = s.unreadableRoot(path, err)
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

// within reports whether path is folder or below it.
func within(folder, path string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// apply reads files or inputs in parallel with a function, and updates the store.
func (s *Store) apply(read, gone []string,
	readOne func(path string, previous *file, options Options) *file) []object.Change {
	results := make([]*file, len(read))
	work := make(chan int)
	var readers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(read)) {
		readers.Go(func() {
			for i := range work {
				results[i] = readOne(read[i], s.before(read[i]), s.options)
			}
		})
	}
	for i := range read {
		work <- i
	}
	close(work)
	readers.Wait()
	s.options.validateAll(results)
	for i, path := range read {
		results[i].collect(path, s.before(path), s.options.Tolerate)
	}
	s.options.Tolerate = s.options.Tolerate && len(s.awaited) > 0

	before := map[object.Key]*object.Object{}
	for _, path := range gone {
		s.replace(path, nil, before)
	}
	for i, path := range read {
		s.replace(path, results[i], before)
	}
	return s.reconcile(before)
}

// replace sets the content of a file (nil: deleted). before records the objects that were in force.
func (s *Store) replace(path string, next *file, before map[object.Key]*object.Object) {
	touch := func(o *object.Object) {
		for _, key := range s.affected(o) {
			if _, ok := before[key]; !ok {
				before[key] = s.inForce(key)
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
			touch(o)
			s.removeHosts(o)
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
			touch(o)
			s.addHosts(o)
			all := s.candidates[o.Key]
			at, _ := slices.BinarySearchFunc(all, o, s.compareCandidates)
			s.candidates[o.Key] = slices.Insert(all, at, o)
		}
	}
}
