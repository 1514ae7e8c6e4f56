package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/readfile"
)

// maxFile is the maximum size of a file in bytes. A file with 5,000 services has about 6 MB.
const maxFile = 64 << 20

// file holds the objects and problems of a file as last read.
type file struct {
	print     fingerprint
	read      time.Time
	documents []readDocument
	// objects of all documents, including the last good versions of invalid objects
	objects []*object.Object
	// the last good versions in objects; all of objects if the file cannot be read
	held     []*object.Object
	problems []object.Problem

	broken bool // a document is broken, or the file cannot be read
	parsed bool // documents were parsed, and collect has not set objects yet

	unreadable bool
	lastRead   *file // if the file cannot be read: its content as last read; nil if it never was

	input bool   // the file is an input of another source; see SourceInput
	text  []byte // text of an input that may have to be validated again later
}

// errEmptied is the error of an empty file that had policies: writers truncate a file before they
// write it.
var errEmptied = errors.New("is empty but had policies before, so it may be truncated")

// readDocument caches the result of reading a document, so that only changed documents are parsed
// again.
type readDocument struct {
	sum   [sha256.Size]byte
	first int // number of its first line, from 1
	document
}

// readFile reads a file, or returns nil if it does not exist. previous is its earlier content, or
// nil.
func readFile(path string, previous *file, options Options) *file {
	next := &file{read: time.Now()}
	content, err := readAll(path, next)
	if err == nil && len(content) == 0 && options.PolicyCountsByFile[path] > 0 {
		err = errEmptied
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isLink(path):
		return nil
	case err != nil:
		next.retain(path, previous, err)
		return next
	}
	next.parse(path, content, previous, options)
	return next
}

// retain sets the content of a file that cannot be read to its earlier content previous, which may
// be nil.
func (f *file) retain(path string, previous *file, err error) {
	f.broken, f.problems = true, []object.Problem{unreadable(path, err)}
	if f.lastRead = previous; previous != nil && previous.unreadable {
		f.lastRead = previous.lastRead
	}
	if f.unreadable = true; f.lastRead == nil {
		f.denyAll(path)
	}
	if f.lastRead != nil {
		f.documents, f.held = f.lastRead.documents, f.lastRead.objects
		f.objects = append(f.objects, f.held...)
		f.problems = append(f.problems, f.lastRead.problems...)
	}
}

// parse sets the documents of a file; collect then sets its objects. previous is its earlier
// content, or nil.
func (f *file) parse(path string, content []byte, previous *file, options Options) {
	known := map[[sha256.Size]byte]readDocument{}
	if previous != nil {
		for _, d := range previous.documents {
			known[d.sum] = d
		}
	}
	r := &reader{file: path, namespace: options.Namespace, validate: options.Validate,
		input: f.input}
	parts, first := split(content)
	for i, part := range parts {
		if f.input {
			first[i] = 0
		}
		sum := sha256.Sum256(part)
		d, ok := known[sum]
		if !ok || d.due() {
			d = readDocument{sum: sum, first: first[i], document: r.read(part, first[i])}
			if f.input {
				d.withoutLines()
			}
		}
		f.documents = append(f.documents, d.moved(first[i]))
	}
	f.parsed = true
}

func readAll(path string, into *file) ([]byte, error) {
	f, err := readfile.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	into.print = fingerprintOf(info)
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, more than the limit of %d; split it", path,
			info.Size(), maxFile)
	}
	content := make([]byte, info.Size(), info.Size()+1)
	n, err := io.ReadFull(f, content)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return inUTF8(content[:n]), nil
}

// isLink reports whether a path is a symbolic link. Its target may be on a file system that is not
// mounted.
func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// moved returns the document as if it began at line first of its file.
func (d readDocument) moved(first int) readDocument {
	by := first - d.first
	if by == 0 {
		return d
	}
	d.first = first
	d.objects, d.problems = slices.Clone(d.objects), slices.Clone(d.problems)
	d.denials = slices.Clone(d.denials)
	for i, n := range d.denials {
		at := *n.object
		at.Line += by
		d.denials[i].object = &at
	}
	for i, o := range d.objects {
		at := *o
		at.Line += by
		d.objects[i] = &at
	}
	for i := range d.problems {
		d.problems[i].Line += by
	}
	return d
}

// stays returns the problem that a policy which the file no longer contains is still in force.
func (f *file) stays(o *object.Object) object.Problem {
	p := object.Problem{File: o.File, Line: 1, Object: o.String(), Severity: condition.Warning,
		Message: "stays in force although the file does not have it any more, because the file has " +
			"an error", Fix: "correct the error"}
	if f.input {
		p.Line = 0
	}
	return p
}

// collect sets the objects of a file from its documents. Last good versions stay in force for
// invalid objects, for objects in unreadable documents, and for policies missing from a file with
// an invalid object. tolerate is Options.TolerateUnknownFields.
func (f *file) collect(path string, previous *file, tolerate bool) {
	if f == nil || !f.parsed {
		return
	}
	present := map[object.Key]bool{}
	bad := map[object.Key]bool{}
	for _, d := range f.documents {
		for _, key := range d.bad {
			bad[key] = true
		}
		f.problems = append(f.problems, d.problems...)
		f.broken = f.broken || d.broken
	}
	var cut []denial
	for i, d := range f.documents {
		lastLine := 0
		for _, o := range d.objects {
			lastLine = max(lastLine, o.Line)
		}
		for _, o := range d.objects {
			last := o.Kind.CanRestrictAccess() && o.Line == lastLine
			// an additional line "---" may have cut off the policy's spec
			if f.broken && slices.Contains(d.bare, o.Key) || last && f.cutOff(i) {
				bad[o.Key] = true
				cut = append(cut, denialOf(o))
				continue
			}
			present[o.Key] = true
			f.objects = append(f.objects, o)
		}
	}
	denials := f.denials(path, cut)
	for _, n := range denials {
		present[n.object.Key] = true
	}
	if previous != nil {
		for _, o := range previous.objects {
			switch {
			case present[o.Key] || isDenial(o):
			case f.broken || bad[o.Key]:
				f.held = append(f.held, f.atLineOf(o, denials))
			// an invalid object may be this policy, with another name or kind after an edit
			case len(bad) > 0 && o.Kind.CanRestrictAccess():
				f.held = append(f.held, o)
				f.problems = append(f.problems, f.stays(o))
			}
		}
	}
	for _, o := range f.held {
		present[o.Key] = true
	}
	for _, d := range f.documents {
		for _, o := range d.tolerable {
			if tolerate && !present[o.Key] {
				present[o.Key] = true
				f.held = append(f.held, o)
			}
		}
	}
	f.objects = append(f.objects, f.held...)
	if !slices.ContainsFunc(f.documents, func(d readDocument) bool {
		return d.doubtful() || !d.again.IsZero()
	}) {
		f.text = nil
	}
	// only last good policies that no invalid document names can be the policy of a document
	// without a readable name
	unnamed := slices.DeleteFunc(slices.Clone(f.held), func(o *object.Object) bool {
		return !o.Kind.CanRestrictAccess() || bad[o.Key]
	})
	f.addDenials(path, denials, unnamed)
}

// cutOff reports whether a line "---" may have cut off the end of the document with index after, so
// that the next document with content is the rest of it.
func (f *file) cutOff(after int) bool {
	for _, d := range f.documents[after+1:] {
		if d.broken || len(d.objects)+len(d.problems) > 0 {
			return d.headless && (d.broken || slices.ContainsFunc(d.problems,
				func(p object.Problem) bool { return p.Severity == condition.Error }))
		}
	}
	return false
}

// unreadable returns the problem that a file exists but cannot be read.
func unreadable(path string, err error) object.Problem {
	p := object.Problem{File: path, Line: 1, Severity: condition.Error,
		Message: "cannot be read: " + err.Error()}
	if errors.Is(err, errEmptied) {
		p.Message, p.Fix = err.Error(), "write it again, or a comment if its policies are to end"
	}
	if !errors.Is(err, fs.ErrPermission) {
		return p
	}
	me, group := currentUser()
	p.Message = fmt.Sprintf("user %s cannot read it", me)
	if closed := closedFolder(path); closed != "" {
		p.Fix = opening(closed)
	} else {
		p.Fix = fmt.Sprintf("chgrp %s %s; chmod 640 %s", group, path, path)
	}
	return p
}

// closedFolder returns the directory in a path that this process may not enter, "" if there is
// none.
func closedFolder(path string) string {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	for folder := filepath.Dir(path); ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(folder); err == nil || folder == filepath.Dir(folder) {
			return folder
		}
	}
}

// opening returns shell commands that permit this process's user to list and enter a directory.
func opening(folder string) string {
	_, group := currentUser()
	return fmt.Sprintf("chgrp %s %s; chmod g+rx %s", group, folder, folder)
}

// currentUser returns the names of the process's user and group, or their IDs.
func currentUser() (name, group string) {
	name, group = strconv.Itoa(os.Geteuid()), strconv.Itoa(os.Getegid())
	if known, err := user.LookupId(name); err == nil {
		name = known.Username
	}
	if known, err := user.LookupGroupId(group); err == nil {
		group = known.Name
	}
	return name, group
}
