package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"outrider.org/outrider/bootstrap"
)

type kind int

const (
	object kind = iota
	list
	text
	literal // a number, true, false or null
)

func (k kind) String() string {
	return [...]string{"an object", "a list", "a string", "a value"}[k]
}

// value is a part of a JSON or YAML document with its line. It retains the order of fields and all
// digits of numbers.
type value struct {
	kind   kind
	line   int
	fields []field  // object
	items  []*value // list
	text   string   // of text: its content; of a literal: its JSON
}

type field struct {
	name  string
	line  int
	value *value
}

// maxDepth bounds the nesting of documents. The limit of protobuf is 100.
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

// parse parses JSON or YAML, selected by the file extension, or else by the first character.
func parse(file string, content []byte) (*value, error) {
	var document *value
	var err error
	switch extension := strings.ToLower(filepath.Ext(file)); extension {
	case ".json":
		document, err = parseJSON(file, content)
	case ".yaml", ".yml":
		document, err = parseYAML(file, content)
	case ".pb", ".pb_text":
		return nil, &bootstrap.Error{File: file,
			Message: "protobuf's own formats are not read; use JSON or YAML"}
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
		return nil, &bootstrap.Error{File: file, Line: document.line, Message: "is " +
			document.kind.String() + ", not a bootstrap (an object with fields such as admin and " +
			"static_resources)"}
	}
	return document, nil
}

// encode writes the document as indented JSON.
func (v *value) encode() ([]byte, error) {
	var compact bytes.Buffer
	if err := v.write(&compact); err != nil {
		return nil, err
	}
	return indent(compact.Bytes())
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
	encoder.SetEscapeHTML(false) // keep regular expressions and formats readable
	if err := encoder.Encode(s); err != nil {
		return err
	}
	to.Truncate(to.Len() - 1) // the newline that Encode adds
	return nil
}
