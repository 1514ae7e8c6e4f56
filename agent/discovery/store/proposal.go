package store

import (
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// FileText is the content of a file with its path.
type FileText struct {
	Path    string
	Content []byte
}

// ReadFileTexts reads files, and those files in directories that a store would read. It returns an
// error if they have more than limit bytes in total.
func ReadFileTexts(paths []string, limit int) ([]FileText, error) {
	var texts []FileText
	left := int64(limit)
	for _, root := range paths {
		var found []string
		err := scan(filepath.Clean(root), func(path string, info fs.FileInfo) {
			if info.IsDir() || !isMesh(filepath.Base(path)) && info.Mode()&fs.ModeSymlink != 0 {
				return
			}
			found = append(found, path)
			left -= info.Size()
		})
		if err != nil {
			return nil, err
		}
		if left < 0 {
			return nil, fmt.Errorf("the files have more than %d MiB in total", limit>>20)
		}
		for _, path := range found {
			content, err := readAll(path, &file{})
			if err != nil {
				return nil, err
			}
			texts = append(texts, FileText{Path: path, Content: content})
		}
	}
	return texts, nil
}

// Proposal holds files that might replace those of a store.
type Proposal struct {
	namespace string
	files     map[string]*file
	folders   []string
	objects   map[object.Key]bool
}

// ParseProposal parses files. folders are the directories whose files are all in texts. Paths are
// absolute. Only Namespace, Validate and ValidateEnvoyFilters of options are used.
func ParseProposal(texts []FileText, folders []string, options Options) Proposal {
	p := Proposal{namespace: options.Namespace, files: map[string]*file{},
		objects: map[object.Key]bool{}}
	for _, folder := range folders {
		p.folders = append(p.folders, filepath.Clean(folder))
	}
	for _, text := range texts {
		path := filepath.Clean(text.Path)
		next := &file{}
		next.parse(path, text.Content, nil, options)
		p.files[path] = next
	}
	options.validateAll(slices.Collect(maps.Values(p.files)))
	for path, next := range p.files {
		next.collect(path, nil, false)
		for _, o := range next.objects {
			p.objects[o.Key] = true
		}
	}
	return p
}

// Namespace returns the default namespace of the proposal.
func (p Proposal) Namespace() string { return p.namespace }

// HasFile reports whether the proposal has a file.
func (p Proposal) HasFile(path string) bool { return p.files[path] != nil }

// WithProposal returns a store with the files and the default namespace of a proposal. Proposed
// files and folders at or below Options.Paths replace the files of s at the same paths. A proposed
// folder elsewhere replaces all files of s. Objects of proposed files elsewhere replace only
// objects of s with equal keys.
func (s *Store) WithProposal(p Proposal) *Store {
	options := s.options
	options.Namespace, options.LastGood, options.AwaitPaths = p.namespace, nil, false
	other := New(options)
	before := map[object.Key]*object.Object{}
	all := slices.ContainsFunc(p.folders, func(folder string) bool { return s.rootOf(folder) == "" })
	for path, known := range s.files {
		if all || p.files[path] != nil || slices.ContainsFunc(p.folders,
			func(folder string) bool { return within(folder, path) }) {
			continue
		}
		rest := *known
		rest.objects = nil
		for _, o := range known.objects {
			if o = o.WithNamespace(p.namespace); !p.objects[o.Key] {
				rest.objects = append(rest.objects, o)
			}
		}
		other.replace(path, &rest, before)
	}
	for path, next := range p.files {
		other.replace(path, next, before)
	}
	other.reconcile(before)
	return other
}
