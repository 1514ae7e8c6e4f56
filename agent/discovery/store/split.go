package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"unicode/utf16"
)

// split splits the content of a file into documents, as kubectl does: each line that begins with
// "---" begins the next document. first holds the number of each document's first line, from 1.
func split(content []byte) (documents [][]byte, first []int) {
	cut := func(document []byte, line int) {
		for _, part := range jsonObjects(document) {
			documents, first = append(documents, part), append(first, line)
			line += bytes.Count(part, []byte("\n"))
		}
	}
	start, line, startLine := 0, 1, 1
	for at := 0; at < len(content); {
		if at > start && isSeparator(bytes.TrimPrefix(content[at:], byteOrderMark)) {
			cut(content[start:at], startLine)
			start, startLine = at, line
		}
		end := bytes.IndexByte(content[at:], '\n')
		if end < 0 {
			break
		}
		at += end + 1
		line++
	}
	cut(content[start:], startLine)
	return documents, first
}

// jsonObjects splits a document of concatenated JSON objects, which kubectl accepts, into its
// objects.
func jsonObjects(document []byte) [][]byte {
	if !bytes.HasPrefix(bytes.TrimLeft(document, " \t\r\n"), []byte("{")) {
		return [][]byte{document}
	}
	var parts [][]byte
	parser, start := json.NewDecoder(bytes.NewReader(document)), 0
	for {
		var object json.RawMessage
		err := parser.Decode(&object)
		if errors.Is(err, io.EOF) && len(parts) > 1 {
			return parts
		}
		if err != nil {
			// the document is YAML, or has an error that its parser will report
			return [][]byte{document}
		}
		end := int(parser.InputOffset())
		parts, start = append(parts, document[start:end]), end
	}
}

func isSeparator(line []byte) bool {
	return bytes.HasPrefix(line, []byte("---")) &&
		(len(line) == 3 || strings.IndexByte(" \t\r\n", line[3]) >= 0)
}

// inUTF8 converts a file with a UTF-16 byte order mark, as PowerShell's > writes it, to UTF-8 so
// that it can be split into documents. It returns other content unchanged.
func inUTF8(content []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(content, []byte("\xff\xfe")):
		order = binary.LittleEndian
	case bytes.HasPrefix(content, []byte("\xfe\xff")):
		order = binary.BigEndian
	default:
		return content
	}
	units := make([]uint16, 0, len(content)/2)
	for rest := content[2:]; len(rest) >= 2; rest = rest[2:] {
		units = append(units, order.Uint16(rest))
	}
	return []byte(string(utf16.Decode(units)))
}

// beforeContent matches the lines of a document before its content.
var beforeContent = regexp.MustCompile(`^(?:---)?(?:[ \t]*(?:#[^\r\n]*)?[\r\n])*`)

// headless reports whether a document begins like the rest of an object that a line "---" has cut
// in two: with spec, or with an indented line.
func headless(document []byte) bool {
	content := document[len(beforeContent.Find(document)):]
	key := bytes.TrimLeft(content, " \t")
	if len(key) == len(content) {
		return bytes.HasPrefix(bytes.TrimLeft(key, `"'`), []byte("spec"))
	}
	return !bytes.HasPrefix(key, []byte("apiVersion"))
}
