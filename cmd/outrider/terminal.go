package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"unicode/utf8"
)

// terminal is a terminal that only this program controls. What it prints has texts of others: names
// of programs, of units and of files, what Envoy and pip say.
type terminal struct{ io.Writer }

// onTerminal is the file, as a terminal if it is one.
func onTerminal(file *os.File) io.Writer {
	if isTerminal(file) {
		return terminal{file}
	}
	return file
}

// controls are control characters, and before them the sequences that this program writes: colours,
// a line that is written again, a screen that is.
var controls = regexp.MustCompile(`\x1b\[[0-9;]*m|\r\x1b\[K|\x1b\[H\x1b\[2J|` +
	`[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}]`)

// Write implements io.Writer. Control characters but tab and newline are shown as their numbers.
func (t terminal) Write(p []byte) (int, error) {
	_, err := t.Writer.Write(controls.ReplaceAllFunc(p, func(found []byte) []byte {
		if r, size := utf8.DecodeRune(found); size == len(found) {
			return fmt.Appendf(nil, `\x%02x`, r)
		}
		return found
	}))
	return len(p), err
}
