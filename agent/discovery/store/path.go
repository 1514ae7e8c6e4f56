package store

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// path is a position in an object. It is a linked list, so that it costs nothing unless an error
// needs its text.
type path struct {
	parent *path
	name   string // name of the field or key; "" for an element of a list
	index  int
	key    bool // name is the key of a map, not the name of a field
}

func (p *path) String() string {
	var parts []string
	for ; p != nil; p = p.parent {
		switch {
		case p.key:
			parts = append(parts, "["+strconv.Quote(p.name)+"]")
		case p.name == "":
			parts = append(parts, "["+strconv.Itoa(p.index)+"]")
		case p.parent == nil:
			parts = append(parts, p.name)
		default:
			parts = append(parts, "."+p.name)
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, "")
}

// locate returns the line of a field, whose path is written as by path.String. If the field is
// missing, it returns the line of the closest parent.
func locate(node *yaml.Node, field string) int {
	line := node.Line
	for field != "" {
		node = resolveAlias(node)
		var child *yaml.Node
		var key string
		switch {
		case strings.HasPrefix(field, "[\""):
			quoted, err := strconv.QuotedPrefix(field[1:])
			if err != nil {
				return line
			}
			key, _ = strconv.Unquote(quoted)
			field = strings.TrimPrefix(field[1+len(quoted):], "]")
		case field[0] == '[':
			number, rest, _ := strings.Cut(field[1:], "]")
			field = rest
			index, err := strconv.Atoi(number)
			if err != nil || node.Kind != yaml.SequenceNode || index < 0 ||
				index >= len(node.Content) {
				return line
			}
			child = node.Content[index]
			line = child.Line
		default:
			field = strings.TrimPrefix(field, ".")
			end := strings.IndexAny(field, ".[")
			if end < 0 {
				end = len(field)
			}
			if end == 0 {
				return line
			}
			key, field = field[:end], field[end:]
		}
		if child == nil {
			if node.Kind != yaml.MappingNode {
				return line
			}
			for i := 0; i+1 < len(node.Content); i += 2 {
				if sameName(node.Content[i].Value, key) {
					line, child = node.Content[i].Line, node.Content[i+1]
				}
			}
			if child == nil {
				return line
			}
		}
		node = child
	}
	return line
}

// sameName reports whether a key in a file names a field. As in protobuf's JSON, trafficPolicy and
// traffic_policy are the same.
func sameName(written, name string) bool {
	return written == name || strings.EqualFold(strings.ReplaceAll(written, "_", ""), name) &&
		strings.Contains(written, "_")
}

// resolveAlias returns the YAML node to which an alias refers, and any other node itself.
func resolveAlias(node *yaml.Node) *yaml.Node {
	for range maxDepth {
		if node.Kind != yaml.AliasNode || node.Alias == nil {
			return node
		}
		node = node.Alias
	}
	return node
}
