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

// yamlError returns a parser's error without its line; see errorLine.
func yamlError(err error) string {
	return yamlLine.ReplaceAllString(strings.ReplaceAll(err.Error(), "\n", " "), "")
}

// notYAML returns the message about a text in whose line, from 1, the parser found a fault.
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

// errorLine returns the line, from 1, at which a parser's error arises: the last one that it has to
// read to find the error. The line in the error itself is often where the surrounding block began,
// or missing.
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

// errNone is a text without a fault.
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

// byteOrderMark begins files that some editors write, and so documents where files are put
// together.
var byteOrderMark = []byte("\ufeff")

// withoutMark removes the byte order mark of a document: at its beginning, or after the line that
// separates it.
func withoutMark(content []byte) []byte {
	content = bytes.TrimPrefix(content, byteOrderMark)
	if end := bytes.IndexByte(content, '\n') + 1; isSeparator(content) &&
		bytes.HasPrefix(content[end:], byteOrderMark) {
		return append(bytes.Clone(content[:end]), content[end+len(byteOrderMark):]...)
	}
	return content
}
