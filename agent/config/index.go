package config

import (
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2/unstable"
)

// index maps the keys of a TOML text to positions. BurntSushi/toml returns values without
// positions, so index reads them from go-toml's syntax tree. An invalid text is indexed up to its
// first syntax error. A fuzz test checks that both parsers find the same keys.
type index struct {
	text    string
	offsets map[string]int  // dotted key → byte offset of its first mention
	written map[string]bool // keys that appear in the text, not only as a prefix of a longer one
	lines   []int           // byte offset of the beginning of each line
	// byte offset of each key in a table of an array; the key has the table's number, from 1
	// ("source.1.type")
	elements map[string]int
}

func newIndex(text string) *index {
	x := &index{text: text, offsets: map[string]int{}, written: map[string]bool{}, lines: []int{0},
		elements: map[string]int{}}
	for i := range len(text) {
		if text[i] == '\n' {
			x.lines = append(x.lines, i+1)
		}
	}
	var parser unstable.Parser
	parser.Reset([]byte(text))
	var table, element []string
	count := map[string]int{}
	for parser.NextExpression() {
		switch node := parser.Expression(); node.Kind {
		case unstable.Table, unstable.ArrayTable:
			key, offset := fullKey(nil, node)
			bracket := max(0, strings.LastIndexByte(text[:offset], '['))
			if node.Kind == unstable.ArrayTable {
				bracket = max(0, bracket-1)
			}
			table, element = key, nil
			x.add(table, bracket)
			if node.Kind == unstable.ArrayTable {
				count[dotted(key)]++
				element = child(key, strconv.Itoa(count[dotted(key)]))
				x.elements[dotted(element)] = bracket
			}
		case unstable.KeyValue:
			x.pair(table, node)
			if element != nil {
				name, offset := fullKey(element, node)
				x.elements[dotted(name)] = offset
			}
		}
	}
	return x
}

// pair adds the key of a key-value node in table, and the keys in its value.
func (x *index) pair(table []string, node *unstable.Node) {
	key, offset := fullKey(table, node)
	x.add(key, offset)
	x.value(key, node.Value())
}

// value adds the keys of inline tables, including those in arrays.
func (x *index) value(key []string, node *unstable.Node) {
	if node.Kind != unstable.Array && node.Kind != unstable.InlineTable {
		return
	}
	for children := node.Children(); children.Next(); {
		if child := children.Node(); child.Kind == unstable.KeyValue {
			x.pair(key, child)
		} else {
			x.value(key, child)
		}
	}
}

// fullKey returns the full key of a node in table, and its byte offset.
func fullKey(table []string, node *unstable.Node) (key []string, offset int) {
	offset = -1
	for parts := node.Key(); parts.Next(); {
		part := parts.Node()
		if offset < 0 {
			offset = int(part.Raw.Offset)
		}
		table = child(table, string(part.Data))
	}
	return table, max(0, offset)
}

// add records a key and its parent tables.
func (x *index) add(key []string, offset int) {
	for n := range key {
		name := dotted(key[:n+1])
		if _, known := x.offsets[name]; !known {
			x.offsets[name] = offset
		}
	}
	x.written[dotted(key)] = true
}

// at returns the line and column of a key, both counted from 1. For a key that is not in the text
// it returns the position of its nearest parent.
func (x *index) at(key []string) (line, column int) {
	for n := len(key); n > 0; n-- {
		name := dotted(key[:n])
		if offset, ok := x.elements[name]; ok {
			return x.position(offset)
		}
		if offset, ok := x.offsets[name]; ok {
			return x.position(offset)
		}
	}
	return 1, 1
}

// position converts a byte offset to line and column; columns count characters.
func (x *index) position(offset int) (line, column int) {
	offset = max(0, min(offset, len(x.text)))
	line = sort.Search(len(x.lines), func(i int) bool { return x.lines[i] > offset })
	return line, utf8.RuneCountInString(x.text[x.lines[line-1]:offset]) + 1
}

// lineText returns a line, counted from 1, without its line ending.
func (x *index) lineText(line int) string {
	text, _, _ := strings.Cut(x.text[x.lines[line-1]:], "\n")
	return strings.TrimSuffix(text, "\r")
}
