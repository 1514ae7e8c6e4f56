package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/bootstrap"
)

// maxExpanded bounds the number of values that aliases expand to.
const maxExpanded = 1 << 17

var yamlLine = regexp.MustCompile(`^yaml: (?:unmarshal errors:\s*)?line (\d+): `)

type yamlReader struct {
	file     string
	aliases  int // nesting of aliases
	expanded int
}

func parseYAML(file string, content []byte) (*value, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, &bootstrap.Error{File: file, Message: "is empty"}
	} else if err != nil {
		return nil, yamlError(file, err)
	}
	var another yaml.Node
	if err := decoder.Decode(&another); err == nil {
		return nil, &bootstrap.Error{File: file, Line: another.Line,
			Message: "a second document follows; one file holds one bootstrap"}
	} else if !errors.Is(err, io.EOF) {
		return nil, yamlError(file, err)
	}
	return (&yamlReader{file: file}).convert(&document, 0)
}

func yamlError(file string, err error) error {
	message := err.Error()
	if match := yamlLine.FindStringSubmatch(message); match != nil {
		line, _ := strconv.Atoi(match[1])
		return &bootstrap.Error{File: file, Line: line, Message: "not YAML: " +
			message[len(match[0]):]}
	}
	// The yaml package omits the line in its message if it is the first.
	return &bootstrap.Error{File: file, Line: 1, Message: "not YAML: " +
		strings.TrimPrefix(message, "yaml: ")}
}

func (r *yamlReader) fail(node *yaml.Node, format string, args ...any) error {
	return &bootstrap.Error{File: r.file, Line: node.Line, Message: fmt.Sprintf(format, args...)}
}

func (r *yamlReader) convert(node *yaml.Node, depth int) (*value, error) {
	if r.aliases > 0 {
		if r.expanded++; r.expanded > maxExpanded {
			return nil, r.fail(node, "aliases expand to more than %d values", maxExpanded)
		}
	}
	if depth > maxDepth {
		return nil, r.fail(node, "%v", errTooDeep)
	}
	switch node.Kind {
	case yaml.DocumentNode:
		return r.convert(node.Content[0], depth)
	case yaml.AliasNode:
		r.aliases++
		defer func() { r.aliases-- }()
		return r.convert(node.Alias, depth+1) // maxDepth ends a recursive alias
	case yaml.SequenceNode:
		v := &value{kind: list, line: node.Line}
		for _, child := range node.Content {
			item, err := r.convert(child, depth+1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, item)
		}
		return v, nil
	case yaml.MappingNode:
		return r.mapping(node, depth)
	case yaml.ScalarNode:
		return r.scalar(node)
	}
	return nil, r.fail(node, "a YAML node that is no value")
}

func (r *yamlReader) mapping(node *yaml.Node, depth int) (*value, error) {
	v := &value{kind: object, line: node.Line}
	seen := map[string]bool{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, content := node.Content[i], node.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return nil, r.fail(key, "the name of a field is not a string")
		}
		if key.Tag == "!!merge" {
			merged = append(merged, content)
			continue
		}
		if seen[key.Value] {
			return nil, r.fail(key, "%q is given twice in one object", key.Value)
		}
		seen[key.Value] = true
		converted, err := r.convert(content, depth+1)
		if err != nil {
			return nil, err
		}
		v.fields = append(v.fields, field{name: key.Value, line: key.Line, value: converted})
	}
	for _, source := range merged { // "<<": fields of the object itself take precedence
		converted, err := r.convert(source, depth+1)
		if err != nil {
			return nil, err
		}
		sources := []*value{converted}
		if converted.kind == list {
			sources = converted.items
		}
		for _, source := range sources {
			if source.kind != object {
				return nil, r.fail(node, "<< merges %s, not an object", source.kind)
			}
			for _, f := range source.fields {
				if !seen[f.name] {
					seen[f.name] = true
					v.fields = append(v.fields, f)
				}
			}
		}
	}
	return v, nil
}

func (r *yamlReader) scalar(node *yaml.Node) (*value, error) {
	v := &value{kind: literal, line: node.Line}
	switch node.ShortTag() {
	case "!!null":
		v.text = "null"
	case "!!bool":
		var b bool
		if err := node.Decode(&b); err != nil {
			return nil, yamlError(r.file, err)
		}
		v.text = strconv.FormatBool(b)
	case "!!int", "!!float":
		if json.Valid([]byte(node.Value)) {
			v.text = node.Value
			break
		}
		return r.number(node, v)
	default: // strings, times and custom tags: the text as written
		v.kind, v.text = text, node.Value
	}
	return v, nil
}

// number converts numbers that JSON lacks: 0x10, 0o7, +1, 1_000, .5, .inf.
func (r *yamlReader) number(node *yaml.Node, v *value) (*value, error) {
	var whole int64
	var large uint64
	var float float64
	isInt := node.ShortTag() == "!!int"
	switch {
	case isInt && node.Decode(&whole) == nil:
		v.text = strconv.FormatInt(whole, 10)
	case isInt && node.Decode(&large) == nil:
		v.text = strconv.FormatUint(large, 10)
	case node.Decode(&float) == nil && math.IsInf(float, 1):
		v.kind, v.text = text, "Infinity" // as in the JSON of protobuf
	case node.Decode(&float) == nil && math.IsInf(float, -1):
		v.kind, v.text = text, "-Infinity"
	case node.Decode(&float) == nil && math.IsNaN(float):
		v.kind, v.text = text, "NaN"
	case node.Decode(&float) == nil:
		v.text = strconv.FormatFloat(float, 'g', -1, 64)
	default:
		return nil, r.fail(node, "%s is not a number", node.Value)
	}
	return v, nil
}
