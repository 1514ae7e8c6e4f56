package store

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

var yamlLine = regexp.MustCompile(`^yaml: (line \d+: )?`)

// yamlError returns the text of a parser's error without its line; see errorLine.
func yamlError(err error) string {
	return yamlLine.ReplaceAllString(strings.ReplaceAll(err.Error(), "\n", " "), "")
}

// notYAML returns the message for a syntax error at a line, counted from 1.
func notYAML(content []byte, line int, message string) string {
	lines := bytes.Split(content, []byte("\n"))
	if at := line - 1; at >= 0 && at < len(lines) {
		indent, _, _ := bytes.Cut(lines[at], bytes.TrimLeft(lines[at], " \t"))
		if bytes.ContainsRune(indent, '\t') {
			message = "indent with spaces, not tabs"
		}
	}
	return "not valid YAML: " + message
}

// errorLine returns the line, from 1, of a parser's error: the last line that the parser must read
// to find the error. The line in the error's own text is missing or often the start of the
// surrounding block.
func errorLine(content []byte, message string) int {
	lines := bytes.SplitAfter(content, []byte("\n"))
	ends := make([]int, len(lines)+1)
	for i, line := range lines {
		ends[i+1] = ends[i] + len(line)
	}
	at := sort.Search(len(lines), func(n int) bool {
		return yamlError(syntaxError(content[:ends[n]])) == message
	})
	return min(at, len(lines))
}

// errNone means that there is no error.
var errNone = errors.New("")

func syntaxError(content []byte) error {
	parser := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var root yaml.Node
		switch err := parser.Decode(&root); {
		case errors.Is(err, io.EOF):
			return errNone
		case err != nil:
			return err
		}
	}
}

// byteOrderMark is written by some editors at the beginning of a file. In concatenated files it is
// at the beginning of a document.
var byteOrderMark = []byte("\ufeff")

// withoutMark removes a byte order mark at the beginning of a document or after the line that
// separates it.
func withoutMark(content []byte) []byte {
	content = bytes.TrimPrefix(content, byteOrderMark)
	if end := bytes.IndexByte(content, '\n') + 1; isSeparator(content) &&
		bytes.HasPrefix(content[end:], byteOrderMark) {
		return append(bytes.Clone(content[:end]), content[end+len(byteOrderMark):]...)
	}
	return content
}
