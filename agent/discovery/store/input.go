package store

import (
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/discovery/object"
)

// FilesSource is the name of Options.Paths in Options.Sources.
const FilesSource = "files"

// Input is what a source other than the files has under one path: a text with objects, or decoded
// objects. With neither, the path is gone. The caller must not modify it afterwards.
type Input struct {
	// Path begins with the name of the source and a colon, and stands for FILE in messages:
	// "kubernetes:VirtualService/default/web".
	Path string
	// Text is YAML or JSON, as in a file. Its objects and problems have no line.
	Text []byte
	// Objects have File = Path, Line = 0, and names with a colon, so that they have the key of no
	// object in a text. Invalid ones are reported and keep their last good version.
	Objects []*object.Object
}

// Batch changes what one source has.
type Batch struct {
	Source string // one of Options.Sources
	Inputs []Input
	All    bool // what the source had before and is not among Inputs is gone
}

// Take applies batches. The inputs of a path replace each other in order. As with files, an invalid
// object keeps its last good version, and a policy without one denies what it selects.
func (s *Store) Take(batches []Batch) []object.Change {
	inputs := map[string]Input{}
	for _, b := range batches {
		if b.All {
			s.complete[b.Source] = true
			for _, path := range s.pathsOf(b.Source) {
				inputs[path] = Input{Path: path}
			}
		}
		for _, in := range b.Inputs {
			if source, _ := s.rank(in.Path); source == b.Source {
				inputs[in.Path] = in
			}
		}
	}
	return s.take(inputs)
}

func (s *Store) take(inputs map[string]Input) []object.Change {
	var read, gone []string
	for _, path := range slices.Sorted(maps.Keys(inputs)) {
		if in := inputs[path]; in.Text == nil && in.Objects == nil {
			gone = append(gone, path)
		} else {
			read = append(read, path)
		}
	}
	return s.apply(read, gone, func(path string, previous *file, options Options) *file {
		return inputs[path].read(previous, options)
	})
}

// takeDue validates inputs again in which something was unknown or invalid, once they are due.
func (s *Store) takeDue() []object.Change {
	inputs := map[string]Input{}
	for path, known := range s.files {
		if known.text != nil && known.due() {
			inputs[path] = Input{Path: path, Text: known.text}
		}
	}
	if len(inputs) == 0 {
		return nil
	}
	return s.take(inputs)
}

// pathsOf returns the paths of a source's inputs, also of those from which an earlier store held
// objects.
func (s *Store) pathsOf(source string) (paths []string) {
	for path := range s.files {
		if of, _ := s.rank(path); of == source {
			paths = append(paths, path)
		}
	}
	for path := range s.held {
		if of, _ := s.rank(path); of == source && s.files[path] == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// expected reports whether a path belongs to a source that has not delivered its complete state.
func (s *Store) expected(path string) bool {
	source, _ := s.rank(path)
	return source != FilesSource && !s.complete[source]
}

// read returns the content of an input. previous is its former content, or nil.
func (in Input) read(previous *file, options Options) *file {
	f := &file{read: time.Now(), input: true, text: in.Text, parsed: true}
	if in.Text != nil {
		f.parse(in.Path, inUTF8(in.Text), previous, options)
	} else {
		f.documents = []readDocument{{document: validateDecoded(in.Objects, options)}}
	}
	if previous != nil {
		f.reuse(previous.objects)
	}
	return f
}

// validateDecoded returns a document with decoded objects.
func validateDecoded(objects []*object.Object, options Options) (found document) {
	for _, o := range objects {
		v := &validated{object: o}
		if options.Validate != nil {
			v.add(options.Validate(o), 0)
		}
		found.problems = append(found.problems, v.problems...)
		found.add(v)
	}
	return found
}

// reuse replaces objects by equal ones of before, so that they do not count as changed: a source
// may deliver objects again of which only what the mesh does not use has changed.
func (f *file) reuse(before []*object.Object) {
	known := make(map[object.Key]*object.Object, len(before))
	for _, o := range before {
		known[o.Key] = o
	}
	for i := range f.documents {
		for j, o := range f.documents[i].objects {
			if same := known[o.Key]; same != nil && same.Defaulted == o.Defaulted &&
				object.Equal(same, o) {
				f.documents[i].objects[j] = same
				delete(known, o.Key)
			}
		}
	}
}

// withoutLines removes the lines of a text that no person wrote.
func (d *document) withoutLines() {
	for _, o := range d.objects {
		o.Line, o.Routes = 0, nil
	}
	for _, v := range d.filters {
		v.object.Line, v.spec = 0, nil
	}
	for _, o := range d.tolerable {
		o.Line = 0
	}
	for _, n := range d.denials {
		n.object.Line = 0
	}
	for i := range d.problems {
		d.problems[i].Line = 0
	}
}
