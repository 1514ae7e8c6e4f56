package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"unicode/utf8"
)

// terminal escapes control characters: the output contains text from others, such as the names of
// programs and files.
type terminal struct{ io.Writer }

// onTerminal wraps a file that is a terminal.
func onTerminal(file *os.File) io.Writer {
	if isTerminal(file) {
		return terminal{file}
	}
	return file
}

// controls matches control characters, and before them the sequences that this program writes:
// colours, rewriting a line, clearing the screen.
var controls = regexp.MustCompile(`\x1b\[[0-9;]*m|\r\x1b\[K|\x1b\[H\x1b\[2J|` +
	`[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}]`)

// Write implements io.Writer. It writes control characters other than tab and newline as numbers.
func (t terminal) Write(p []byte) (int, error) {
	_, err := t.Writer.Write(controls.ReplaceAllFunc(p, func(found []byte) []byte {
		if r, size := utf8.DecodeRune(found); size == len(found) {
			return fmt.Appendf(nil, `\x%02x`, r)
		}
		return found
	}))
	return len(p), err
}
