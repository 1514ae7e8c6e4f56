package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"outrider.org/outrider/bootstrap"
)

// jsonReader converts JSON to values with line numbers.
type jsonReader struct {
	file    string
	content []byte
	decoder *json.Decoder
	offset  int // line is counted up to this offset
	line    int
}

func parseJSON(file string, content []byte) (*value, error) {
	r := &jsonReader{file: file, content: content,
		decoder: json.NewDecoder(bytes.NewReader(content)), line: 1}
	r.decoder.UseNumber()
	document, err := r.next(0)
	if err != nil {
		return nil, r.fail(err)
	}
	if _, err := r.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, &bootstrap.Error{File: file, Line: r.at(),
			Message: "something follows after the end of the document"}
	}
	return document, nil
}

func (r *jsonReader) fail(err error) error {
	if _, ok := errors.AsType[*bootstrap.Error](err); ok {
		return err
	}
	line := r.at()
	// The error of the token decoder has an offset relative to the current value. Unmarshal the
	// whole document again to get an offset in the document.
	var all json.RawMessage
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(r.content, &all)); ok {
		line = 1 + bytes.Count(r.content[:max(0, syntax.Offset-1)], []byte("\n"))
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &bootstrap.Error{File: r.file, Line: line,
			Message: "the document ends in the middle"}
	}
	return &bootstrap.Error{File: r.file, Line: line, Message: "not JSON: " + err.Error()}
}

// at returns the line of the last token.
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
			return nil, fmt.Errorf("a field name is expected instead of %v", token)
		}
		line := r.at()
		if seen[name] {
			return nil, &bootstrap.Error{File: r.file, Line: line,
				Message: fmt.Sprintf("%q is given twice in one object", name)}
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
