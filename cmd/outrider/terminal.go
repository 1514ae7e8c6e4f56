package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"unicode/utf8"
)

// terminal escapes control characters: the output contains text from untrusted sources, such as
// names of programs and files.
type terminal struct{ io.Writer }

// onTerminal returns the file, wrapped in terminal if it is a terminal.
func onTerminal(file *os.File) io.Writer {
	if isTerminal(file) {
		return terminal{file}
	}
	return file
}

// Sequences that move the cursor. terminal.Write escapes them; the function control does not.
const (
	clearLine   = "\r\x1b[K"
	clearScreen = "\x1b[H\x1b[2J" // cursor to the top left, then clear
)

// control writes clearLine or clearScreen without escaping it.
func control(out io.Writer, sequence string) {
	if t, ok := out.(terminal); ok {
		out = t.Writer
	}
	_, _ = io.WriteString(out, sequence)
}

// controls matches control characters, characters that change the direction of text, and bytes that
// are not UTF-8, all of which terminal.Write escapes. Its first alternative matches this program's
// own colour sequences (see style), which terminal.Write leaves unchanged.
var controls = regexp.MustCompile(`\x1b\[(?:[012]|3[123])m|` +
	`[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}\x{200e}\x{200f}\x{202a}-\x{202e}` +
	`\x{2066}-\x{2069}\x{fffd}]`)

// Write implements io.Writer. It escapes control characters other than tab and newline.
func (t terminal) Write(p []byte) (int, error) {
	_, err := t.Writer.Write(controls.ReplaceAllFunc(p, func(found []byte) []byte {
		switch r, size := utf8.DecodeRune(found); {
		case r == utf8.RuneError && size == 1:
			return fmt.Appendf(nil, `\x%02x`, found[0])
		case r != utf8.RuneError && size == len(found):
			return fmt.Appendf(nil, `\x%02x`, r)
		}
		return found
	}))
	return len(p), err
}
