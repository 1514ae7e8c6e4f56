package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// Error is something wrong with a file of the user's.
type Error struct {
	File    string
	Line    int    // from 1; 0 = not known
	Path    string // of the field: "admin.address.pipe"; "" = the file as a whole
	Message string
}

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

type kind int

const (
	object kind = iota
	list
	text
	literal // a number, true, false or null
)

func (k kind) String() string { return [...]string{"an object", "a list", "a string", "a value"}[k] }

// value is a part of a JSON or YAML document, with the line it begins on. It keeps the order of fields and every digit
// of a number.
type value struct {
	kind   kind
	line   int
	fields []field  // object
	items  []*value // list
	text   string   // text; literal: as JSON writes it
}

type field struct {
	name  string
	line  int
	value *value
}

// maxDepth is how deep documents may nest; protobuf's own readers stop at 100.
const maxDepth = 100

var errTooDeep = fmt.Errorf("nested deeper than %d levels", maxDepth)

// get returns the first of the named fields, nil if there is none.
func (v *value) get(names ...string) *value {
	for _, f := range v.fields {
		for _, name := range names {
			if f.name == name {
				return f.value
			}
		}
	}
	return nil
}

func (v *value) isNull() bool { return v.kind == literal && v.text == "null" }

// parse reads a document: JSON or YAML by the file's ending, else by its first character.
func parse(file string, content []byte) (*value, error) {
	var document *value
	var err error
	switch extension := strings.ToLower(filepath.Ext(file)); extension {
	case ".json":
		document, err = parseJSON(file, content)
	case ".yaml", ".yml":
		document, err = parseYAML(file, content)
	case ".pb", ".pb_text":
		return nil, &Error{File: file, Message: "protobuf's own formats are not read; use JSON or YAML"}
	default:
		if bytes.HasPrefix(bytes.TrimSpace(content), []byte("{")) {
			document, err = parseJSON(file, content)
		} else {
			document, err = parseYAML(file, content)
		}
	}
	if err != nil {
		return nil, err
	}
	if document.kind != object {
		return nil, &Error{File: file, Line: document.line, Message: "is " + document.kind.String() + ", not a bootstrap (an object with fields such as admin and static_resources)"}
	}
	return document, nil
}

// encode writes the document as indented JSON.
func (v *value) encode() ([]byte, error) {
	var compact bytes.Buffer
	if err := v.write(&compact); err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, compact.Bytes(), "", "  "); err != nil {
		return nil, err
	}
	indented.WriteByte('\n')
	return indented.Bytes(), nil
}

func (v *value) write(to *bytes.Buffer) error {
	switch v.kind {
	case object:
		to.WriteByte('{')
		for i, f := range v.fields {
			if i > 0 {
				to.WriteByte(',')
			}
			if err := writeText(to, f.name); err != nil {
				return err
			}
			to.WriteByte(':')
			if err := f.value.write(to); err != nil {
				return err
			}
		}
		to.WriteByte('}')
	case list:
		to.WriteByte('[')
		for i, item := range v.items {
			if i > 0 {
				to.WriteByte(',')
			}
			if err := item.write(to); err != nil {
				return err
			}
		}
		to.WriteByte(']')
	case text:
		return writeText(to, v.text)
	case literal:
		to.WriteString(v.text)
	}
	return nil
}

func writeText(to *bytes.Buffer, s string) error {
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false) // regular expressions and formats stay readable
	if err := encoder.Encode(s); err != nil {
		return err
	}
	to.Truncate(to.Len() - 1) // the line end that Encode adds
	return nil
}

// jsonReader builds values from a stream of JSON tokens, counting lines.
type jsonReader struct {
	file    string
	content []byte
	decoder *json.Decoder
	offset  int // up to which lines were counted
	line    int
}

func parseJSON(file string, content []byte) (*value, error) {
	r := &jsonReader{file: file, content: content, decoder: json.NewDecoder(bytes.NewReader(content)), line: 1}
	r.decoder.UseNumber()
	document, err := r.next(0)
	if err != nil {
		return nil, r.fail(err)
	}
	if _, err := r.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, &Error{File: file, Line: r.at(), Message: "something follows after the end of the document"}
	}
	return document, nil
}

func (r *jsonReader) fail(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	line := r.at()
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line = 1 + bytes.Count(r.content[:min(int(syntax.Offset), len(r.content))], []byte("\n"))
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &Error{File: r.file, Line: line, Message: "the document ends in the middle"}
	}
	return &Error{File: r.file, Line: line, Message: "not JSON: " + err.Error()}
}

// at is the line of the token read last.
func (r *jsonReader) at() int {
	end := int(r.decoder.InputOffset())
	r.line += bytes.Count(r.content[r.offset:end], []byte("\n"))
	r.offset = end
	return r.line
}

func (r *jsonReader) next(depth int) (*value, error) {
	token, err := r.decoder.Token()
	if err != nil {
		return nil, err
	}
	v := &value{line: r.at()}
	switch token := token.(type) {
	case json.Delim:
		if depth == maxDepth {
			return nil, errTooDeep
		}
		if token == '{' {
			return r.object(v, depth)
		}
		v.kind = list
		for r.decoder.More() {
			item, err := r.next(depth + 1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, item)
		}
		_, err := r.decoder.Token()
		return v, err
	case string:
		v.kind, v.text = text, token
	case json.Number:
		v.kind, v.text = literal, token.String()
	case bool:
		v.kind, v.text = literal, fmt.Sprint(token)
	case nil:
		v.kind, v.text = literal, "null"
	}
	return v, nil
}

func (r *jsonReader) object(v *value, depth int) (*value, error) {
	v.kind = object
	seen := map[string]bool{}
	for r.decoder.More() {
		token, err := r.decoder.Token()
		if err != nil {
			return nil, err
		}
		name, ok := token.(string)
		if !ok {
			return nil, fmt.Errorf("%v is not the name of a field", token)
		}
		line := r.at()
		if seen[name] {
			return nil, &Error{File: r.file, Line: line, Message: fmt.Sprintf("%q is given twice in one object", name)}
		}
		seen[name] = true
		content, err := r.next(depth + 1)
		if err != nil {
			return nil, err
		}
		v.fields = append(v.fields, field{name: name, line: line, value: content})
	}
	_, err := r.decoder.Token()
	return v, err
}
