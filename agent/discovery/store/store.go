// Package store reads files with Istio's YAML, and inputs of other sources. It holds their objects,
// each in its last good version, and the problems of the newest versions. It reads only files that
// have changed.
package store

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"outrider.org/outrider/agent/discovery/object"
)

// Options configures a store.
type Options struct {
	Paths     []string // files, and directories whose YAML and JSON files are read recursively
	Namespace string   // namespace of objects that name none

	// Validate returns the problems of an object's spec; if one is an error, the object is invalid.
	// nil: no validation
	Validate func(*object.Object) []object.Finding

	// ValidateEnvoyFilters checks all EnvoyFilters that were read together, except those in which
	// Validate found an error other than UnknownField. nil: no check
	ValidateEnvoyFilters func([]*object.Object) []ValidationResult

	// TolerateUnknownFields accepts, in the first Load (with AwaitPaths, until each path exists),
	// objects whose only errors are UnknownField. An accepted object becomes its own last good
	// version, unless an earlier one is known.
	TolerateUnknownFields bool

	// AwaitPaths makes it an error (see PoliciesIncompleteProblem) if a path, or one of
	// PolicyFolderInodes, is missing or cannot be listed: its file system may not be mounted yet.
	// The error ends once the path is listed.
	AwaitPaths bool

	// PolicyFolderInodes are the inodes of the directories in which an earlier store had policies
	// (Store.PolicyFolderInodes).
	PolicyFolderInodes map[string]uint64

	// PolicyCountsByFile has the numbers of policies of files in an earlier store
	// (Store.PolicyCountsByFile). If a file is broken or empty, and fewer of its policies are
	// known, everything is denied.
	PolicyCountsByFile map[string]int

	// PolicyLocationsIncomplete reports that PolicyFolderInodes and PolicyCountsByFile could not be
	// read. With AwaitPaths, every directory without files, and every broken file, then counts as
	// one that may have had policies.
	PolicyLocationsIncomplete bool

	// LastGood holds the result of LastGoodObjects of an earlier store. Objects without a namespace
	// are in this store's default namespace.
	LastGood []*object.Object

	// Sources has the names of the sources, including FilesSource, in order of precedence: of
	// objects with equal keys, the one of the earlier source is in force. Batches of other sources
	// are ignored. nil: only files
	Sources []string

	// RequiredSources are the members of Sources whose policies are unknown until they have
	// delivered their complete state once; see PoliciesIncompleteProblem.
	RequiredSources []string

	// MissingPaths are paths that were away in an earlier store (Store.MissingPaths) and whose
	// objects stay in force.
	MissingPaths []string
}

// Store holds the objects of files and inputs. It is not safe for concurrent use.
type Store struct {
	options Options
	files   map[string]*file
	// by file: last good versions of invalid objects, and objects of files that were not found yet
	held map[string][]*object.Object
	// all objects with the same key, the one in force first; see compareCandidates
	candidates map[object.Key][]*object.Object
	ranks      map[string]int  // index of each source in Options.Sources
	complete   map[string]bool // sources that have delivered their complete state
	// services of registries by host, those of the earliest source first
	registered map[string][]*object.Object
	roots      map[string]object.Problem // problems of those Options.Paths that cannot be read
	// with AwaitPaths: those Options.Paths that could not be listed yet
	awaited map[string]bool
	listed  map[string]bool // those Options.Paths whose files have all been found once
	// identities of directories at their last scan; of a directory that is away, before it was away
	folders       map[string]folderID
	policyFolders map[string]int // number of files with policies, by directory
	// directories that may have policies and were not found yet; each has a problem from the first
	// scan on
	missing    map[string]object.Problem
	suspicious map[string]bool // with PolicyLocationsIncomplete: Options.Paths not found yet
	// problems of paths that are away
	away map[string]object.Problem
	// for the next Load: what was in force, by key, before New restored the objects below
	// Options.MissingPaths
	restored   map[object.Key]*object.Object
	duplicates map[object.Key][]object.Problem
	// denials of policies that have no effect because others with the same key are in force; see
	// conflict
	denials map[object.Key][]*object.Object
	// problems of all files, sorted; nil: must be collected again
	ofFiles []object.Problem
}

// New returns a store that has read no files yet.
func New(options Options) *Store {
	options.Paths = slices.Clone(options.Paths)
	if options.PolicyCountsByFile = maps.Clone(options.PolicyCountsByFile); options.PolicyCountsByFile == nil {
		options.PolicyCountsByFile = map[string]int{}
	}
	for i, path := range options.Paths {
		options.Paths[i] = filepath.Clean(path)
	}
	s := &Store{options: options, files: map[string]*file{}, held: map[string][]*object.Object{},
		candidates: map[object.Key][]*object.Object{},
		roots:      map[string]object.Problem{}, folders: map[string]folderID{},
		policyFolders: map[string]int{}, missing: map[string]object.Problem{},
		suspicious: map[string]bool{},
		listed:     map[string]bool{}, away: map[string]object.Problem{},
		duplicates: map[object.Key][]object.Problem{}, denials: map[object.Key][]*object.Object{},
		ranks: map[string]int{}, complete: map[string]bool{},
		registered: map[string][]*object.Object{}}
	for i, source := range options.Sources {
		s.ranks[source] = i
	}
	if options.AwaitPaths {
		s.awaited = map[string]bool{}
		for _, path := range options.Paths {
			s.awaited[path] = true
		}
		s.expectFolders(options.PolicyFolderInodes)
	}
	for _, o := range options.LastGood {
		s.held[o.File] = append(s.held[o.File], o.WithNamespace(options.Namespace))
		if o.Kind.CanRestrictAccess() && s.rootOf(o.File) != "" {
			s.options.PolicyCountsByFile[o.File] = max(s.options.PolicyCountsByFile[o.File], 1)
		}
	}
	s.restore(options.MissingPaths)
	return s
}

// Load reads all files that changed since they were last read, and returns the changes of objects.
func (s *Store) Load() []object.Change {
	return append(s.Reload(s.options.Paths), s.takeDue()...)
}

// Reload reads certain files again whatever their time stamps, and the files below certain
// directories whose time stamps have changed. A trailing "/..." of a path is ignored. Objects of
// deleted files are removed. If a configured path itself disappears, its objects stay in force and
// a problem is reported.
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
			s.holdUnseen(s.unseen(root, nil))
			continue
		}
		if _, wrong := s.roots[root]; wrong {
			path = root // the configured path may exist again
		}
		for folder := range s.away {
			if within(folder, path) {
				path = folder // the directory may be mounted again
			}
		}
		if _, err := os.Lstat(path); err == nil && s.files[path] != nil {
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
	s.options.PolicyLocationsIncomplete = s.options.PolicyLocationsIncomplete && len(s.awaited) > 0
	return changes
}

// rootOf returns the configured path that contains a path, or "".
func (s *Store) rootOf(path string) string {
	for _, root := range s.options.Paths {
		if within(root, path) {
			return root
		}
	}
	return ""
}

// compare returns the files at and below a path that changed, and those that are gone. After an
// incomplete scan, unseen has the files whose state is unknown: a file in an unreadable directory
// is not deleted; reading it reports the error.
func (s *Store) compare(path string, isRoot bool) (changed, gone, unseen []string) {
	present, folders := map[string]bool{}, map[string]folderID{}
	var links []string // links without a target
	err := scan(path, func(found string, info fs.FileInfo) {
		switch {
		case info.IsDir():
			folders[found] = folderOf(info)
			return
		case !isMesh(filepath.Base(found)) && info.Mode()&fs.ModeSymlink != 0:
			links = append(links, found)
			return
		case found == path && !isRoot && !isMesh(filepath.Base(path)):
			return
		}
		present[found] = true
		known := s.files[found]
		if print := fingerprintOf(info); known == nil || known.print != print ||
			print.fresh(known.read) || known.due() {
			changed = append(changed, found)
		}
	})
	missing := s.retainAway(path, s.unseen(path, present))
	if isRoot {
		s.suspect(path, folders, links)
	}
	if present[path] {
		delete(s.missing, path)
	}
	s.find(path, folders)
	s.recordFolders(path, folders)
	if isRoot {
		s.recordRoot(path, err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return changed, nil, missing
	}
	gone = slices.DeleteFunc(missing, func(file string) bool { return s.files[file] == nil })
	return changed, gone, nil
}

// within reports whether a path is a folder or below it.
func within(folder, path string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// apply reads files or inputs in parallel by a function, and updates the store.
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
		results[i].collect(path, s.before(path), s.options.TolerateUnknownFields)
		s.guard(path, results[i])
	}
	s.options.TolerateUnknownFields = s.options.TolerateUnknownFields && len(s.awaited) > 0

	before := s.restored
	if s.restored = nil; before == nil {
		before = map[object.Key]*object.Object{}
	}
	for _, path := range gone {
		s.replace(path, nil, before)
	}
	for i, path := range read {
		s.replace(path, results[i], before)
	}
	return s.reconcile(before)
}

// replace sets the content of a file (nil: deleted). It adds the objects that were in force before
// the change to before, by key.
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
	s.countPolicies(path, s.files[path], next)
	s.hold(path, next)
	if next == nil {
		delete(s.files, path)
		delete(s.options.PolicyCountsByFile, path)
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
