package store

import (
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/discovery/object"
)

// FilesSource is the name in Options.Sources for the files in Options.Paths.
const FilesSource = "files"

// SourceInput is what a source other than the files delivers under one path: a text with objects,
// or decoded objects. A SourceInput without either removes the path. The caller must not modify a
// SourceInput after passing it.
type SourceInput struct {
	// Path begins with the source's name and a colon, and replaces FILE in messages:
	// "kubernetes:VirtualService/default/web".
	Path string
	// Text is YAML or JSON, as in a file. Its objects and problems have line 0.
	Text []byte
	// Objects must have File = Path, Line = 0, and a colon in their names, so that no object of a
	// text can have the same key. Invalid objects are reported, and their last good versions stay
	// in force.
	Objects []*object.Object
}

// SourceUpdate is a change of the inputs of one source.
type SourceUpdate struct {
	Source   string // name of the source, in Options.Sources
	Inputs   []SourceInput
	Complete bool // Inputs are complete: all other inputs of the source are removed
}

// ApplyUpdates applies updates in order. As with files, the last good version of an invalid object
// stays in force, and an invalid policy without one is replaced by a denial.
func (s *Store) ApplyUpdates(batches []SourceUpdate) []object.Change {
	inputs := map[string]SourceInput{}
	for _, b := range batches {
		if b.Complete {
			s.complete[b.Source] = true
			for _, path := range s.pathsOf(b.Source) {
				inputs[path] = SourceInput{Path: path}
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

func (s *Store) take(inputs map[string]SourceInput) []object.Change {
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

// takeDue validates again the inputs that were invalid or had an UnknownField, and whose time for
// another validation has come.
func (s *Store) takeDue() []object.Change {
	inputs := map[string]SourceInput{}
	for path, known := range s.files {
		if known.text != nil && known.due() {
			inputs[path] = SourceInput{Path: path, Text: known.text}
		}
	}
	if len(inputs) == 0 {
		return nil
	}
	return s.take(inputs)
}

// pathsOf returns the paths of a source's inputs, including those of objects that an earlier store
// held.
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

// expected reports whether a path belongs to a source that has not delivered its complete state
// yet.
func (s *Store) expected(path string) bool {
	source, _ := s.rank(path)
	return source != FilesSource && !s.complete[source]
}

// read returns the content of an input. previous is its earlier content, or nil.
func (in SourceInput) read(previous *file, options Options) *file {
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

// validateDecoded returns a document with decoded objects, validated.
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

// reuse replaces objects by equal ones in before, so that they do not count as changed. A source
// may deliver an object again because of a field that the mesh does not use.
func (f *file) reuse(before []*object.Object) {
	known := make(map[object.Key]*object.Object, len(before))
	for _, o := range before {
		known[o.Key] = o
	}
	for i := range f.documents {
		for j, o := range f.documents[i].objects {
			if same := known[o.Key]; same != nil && same.NamespaceDefaulted == o.NamespaceDefaulted &&
				object.Equal(same, o) {
				f.documents[i].objects[j] = same
				delete(known, o.Key)
			}
		}
	}
}

// withoutLines sets the lines in a document to 0, because no person wrote its text.
func (d *document) withoutLines() {
	for _, o := range d.objects {
		o.Line, o.RouteLines = 0, nil
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
