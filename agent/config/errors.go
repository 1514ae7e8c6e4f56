package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Position is where a key stands. Line and Column count from 1, columns in characters. Both are 0
// for what is wrong with the file as a whole, Column alone for an object of the mesh. File is empty
// for what no file says (a command line).
type Position struct {
	File   string
	Line   int
	Column int
}

// String is "file:line:column", shorter where less is known.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	if p.Column == 0 {
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is one thing that is wrong with a configuration, in words: where, which key, what, and the cure.
type Error struct {
	Position
	Key     string // dotted, "" where it is not about a key
	Message string
	Cure    string // "" where the message says it
	Cause   error  // whose text is in the message; nil where the configuration itself is wrong
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Because returns the error with its cause.
func (e *Error) Because(cause error) *Error {
	e.Cause = cause
	return e
}

// Error is "file:line:column: key: message; cure".
func (e *Error) Error() string {
	var b strings.Builder
	for _, part := range []string{e.Position.String(), e.Key} {
		if part != "" {
			b.WriteString(part)
			b.WriteString(": ")
		}
	}
	b.WriteString(e.Message)
	if e.Cure != "" {
		b.WriteString("; ")
		b.WriteString(e.Cure)
	}
	return b.String()
}

// String is Error's text (the embedded Position would answer otherwise).
func (e *Error) String() string { return e.Error() }

// Errors is everything that is wrong with a configuration, in the order of its files and lines.
type Errors []*Error

// Error has one line per error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the single errors.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, one := range e {
		all[i] = one
	}
	return all
}

// sort orders by file (as they were read), line and column; what has no line comes first.
func (e Errors) sort(files []string) {
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(
			cmp.Compare(slices.Index(files, a.File), slices.Index(files, b.File)),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column))
	})
}

// Fault is something wrong with a key that shows only when its value is used, where the key was said. "" and a key that no
// file says stand for the main file.
func (l *Loaded) Fault(key, message, cure string) *Error {
	e := &Error{Position: l.Sources[key], Key: key, Message: message, Cure: cure}
	if e.Position == (Position{}) && len(l.Files) > 0 {
		e.Position = Position{File: l.Files[0]}
	}
	return e
}

// problem is what is wrong with a value, before it is known whose value it is.
type problem struct {
	message, cure string
	concealed     string   // message without the value; "" for notValid
	below         []string // the entry it is about, of a table of values
}

func problemf(cure, format string, arguments ...any) *problem {
	return &problem{message: fmt.Sprintf(format, arguments...), cure: cure}
}
