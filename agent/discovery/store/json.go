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

// errTooDeep is the error of JSON with more levels than any object.
var errTooDeep = errors.New("too many levels")

// parseJSON returns the tree that the YAML parser makes of a JSON text, without lines, in less than
// half of its time. It returns nil for all other texts, whose faults the YAML parser explains.
func parseJSON(text []byte) *yaml.Node {
	if !utf8.Valid(text) {
		return nil // package json would replace what is invalid
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
		_, err = decoder.Token() // its end
	default:
		node.Value = "null"
	}
	return node, err
}
