package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Position is a location in a file. Line and Column count from 1; Column counts characters. Both
// are 0 for a problem of the whole file; Column is 0 for an object of the mesh. File is empty if no
// file is involved, for example for a command line.
type Position struct {
	File   string
	Line   int
	Column int
}

// String returns "file:line:column" and omits unknown parts.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	if p.Column == 0 {
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is one problem of a configuration: position, key, message and fix.
type Error struct {
	Position
	Key     string // dotted TOML key; "" if no key is involved
	Message string
	Fix     string // "" if the message contains it
	// Cause is the underlying error, whose text is in Message; nil if the configuration itself is
	// the problem.
	Cause error
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// WithCause sets the cause and returns e.
func (e *Error) WithCause(cause error) *Error {
	e.Cause = cause
	return e
}

// Error returns "file:line:column: key: message; fix".
func (e *Error) Error() string {
	var b strings.Builder
	for _, part := range []string{e.Position.String(), e.Key} {
		if part != "" {
			b.WriteString(part)
			b.WriteString(": ")
		}
	}
	b.WriteString(e.Message)
	if e.Fix != "" {
		b.WriteString("; ")
		b.WriteString(e.Fix)
	}
	return b.String()
}

// String is the same as Error; it overrides the method of the embedded Position.
func (e *Error) String() string { return e.Error() }

// Errors lists all problems of a configuration, in the order of its files and lines.
type Errors []*Error

// Error returns one line per problem.
func (e Errors) Error() string {
	return strings.Join(ErrorLines(e), "\n")
}

// Unwrap returns the individual errors, for errors.As.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, one := range e {
		all[i] = one
	}
	return all
}

// sort orders the errors by file in reading order, line and column; errors without a line come
// first.
func (e Errors) sort(files []string) {
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(
			cmp.Compare(slices.Index(files, a.File), slices.Index(files, b.File)),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column))
	})
}

// KeyError returns an error about a key whose value proved invalid in use, at the position of the
// key. If key is "" or no file sets it, the position is the main file.
func (l *Loaded) KeyError(key, message, fix string) *Error {
	e := &Error{Position: l.Positions[key], Key: key, Message: message, Fix: fix}
	if e.Position == (Position{}) && len(l.Files) > 0 {
		e.Position = Position{File: l.Files[0]}
	}
	return e
}

// problem is the finding of a check, which does not know its key and position.
type problem struct {
	message, fix string
	concealed    string   // message without the value; "" = notValid
	below        []string // path of the entry in a table such as node.labels
}

func problemf(fix, format string, arguments ...any) *problem {
	return &problem{message: fmt.Sprintf(format, arguments...), fix: fix}
}

// ErrorLines returns the text of an error as lines: one per problem if it is of type Errors.
func ErrorLines(err error) []string {
	list, ok := errors.AsType[Errors](err)
	if !ok {
		return []string{err.Error()}
	}
	var all []string
	for _, one := range list {
		all = append(all, one.Error())
	}
	return all
}
