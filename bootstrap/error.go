package bootstrap

import (
	"fmt"
	"strings"
)

// Error is an error in a user's file.
type Error struct {
	File    string
	Line    int    // from 1; 0 = not known
	Path    string // path of the field, such as "admin.address.pipe"; "" = the file as a whole
	Message string
}

// RenderProgramError means that outrider-bootstrap did not answer. Unless it is missing, the next
// attempt may succeed.
type RenderProgramError struct {
	Err     error
	Missing bool // the program does not exist or cannot be executed
}

// Error implements error.
func (e *RenderProgramError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RenderProgramError) Unwrap() error { return e.Err }

// Error implements error: "file:line: path: message".
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&text, ":%d", e.Line)
	}
	text.WriteString(": ")
	if e.Path != "" {
		text.WriteString(e.Path + ": ")
	}
	text.WriteString(e.Message)
	return text.String()
}
