package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// errTooDeep is the error of JSON with more levels of nesting than any object has.
var errTooDeep = errors.New("too many levels of nesting")

// parseJSON parses a JSON text into the tree that the YAML parser would return, without lines, in
// less than half of the time. It returns nil for every other text, so that the YAML parser reports
// its errors.
func parseJSON(text []byte) *yaml.Node {
	if !utf8.Valid(text) {
		return nil // package json would replace invalid UTF-8
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	node, err := jsonNode(decoder, 0)
	if err != nil {
		return nil
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil
	}
	return node
}

func jsonNode(decoder *json.Decoder, depth int) (*yaml.Node, error) {
	if depth > maxDepth {
		return nil, errTooDeep
	}
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	node := &yaml.Node{Kind: yaml.ScalarNode}
	switch token := token.(type) {
	case string:
		node.Value, node.Style = token, yaml.DoubleQuotedStyle
	case json.Number:
		node.Value = token.String()
	case bool:
		node.Value = strconv.FormatBool(token)
	case json.Delim:
		if node.Kind = yaml.MappingNode; token == '[' {
			node.Kind = yaml.SequenceNode
		}
		node.Style = yaml.FlowStyle
		for decoder.More() {
			child, err := jsonNode(decoder, depth+1)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		_, err = decoder.Token() // end of the object or array
	default:
		node.Value = "null"
	}
	return node, err
}
