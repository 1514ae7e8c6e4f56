package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// DecodeMessage decodes a file with a single YAML document into a message. If decoding succeeds, it
// calls check to validate the message. It returns all problems with their lines. If one of them is
// an error, the message must not be used.
func DecodeMessage(file string, content []byte, into proto.Message,
	check func() []object.Finding) []object.Problem {
	parser := yaml.NewDecoder(bytes.NewReader(content))
	var root, next yaml.Node
	err := parser.Decode(&root)
	if errors.Is(err, io.EOF) {
		return nil // an empty file is valid
	}
	if err == nil {
		if err = parser.Decode(&next); err == nil {
			return []object.Problem{{File: file, Line: next.Line, Severity: condition.Error,
				Message: "a second document", Fix: "leave one in the file"}}
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		message := yamlError(err)
		line := errorLine(content, message)
		return []object.Problem{{File: file, Line: line, Severity: condition.Error,
			Message: notYAML(content, line, message)}}
	}
	node := root.Content[0]
	if isNull(node) {
		return nil
	}
	d := &decoder{protobuf: true, problemAt: func(line int, field string) object.Problem {
		return object.Problem{File: file, Line: line, Field: field}
	}}
	d.message(node, into.ProtoReflect(), nil, 0)
	if !d.failed {
		for _, f := range check() {
			d.problems = append(d.problems, object.Problem{File: file, Line: locate(node, f.Field),
				Field: f.Field, Severity: f.Severity, Message: f.Message, Fix: f.Fix})
		}
	}
	slices.SortFunc(d.problems, object.Problem.Compare)
	return d.problems
}

// ReadFile reads a file with the limits of a store: it must be a regular file of limited size.
func ReadFile(path string) ([]byte, error) {
	content, err := readAll(path, &file{})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return content, nil
}
