package config

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// index tells where the keys of a TOML text stand: the parser returns values without positions. It is made by a scanner
// that follows TOML 1.1 closely enough to find every key of a valid text; of an invalid one it finds some.
type index struct {
	text    string
	offsets map[string]int  // dotted key → byte offset of its first mention
	written map[string]bool // keys that are written out, not only implied by a longer one
	lines   []int           // byte offset of the beginning of each line
}

func newIndex(text string) *index {
	x := &index{text: text, offsets: map[string]int{}, written: map[string]bool{}, lines: []int{0}}
	for i := range len(text) {
		if text[i] == '\n' {
			x.lines = append(x.lines, i+1)
		}
	}
	s := scanner{text: text, found: x.add}
	s.document()
	return x
}

// add notes a key and the tables it implies.
func (x *index) add(key []string, offset int) {
	for n := range key {
		name := dotted(key[:n+1])
		if _, known := x.offsets[name]; !known {
			x.offsets[name] = offset
		}
		if n == len(key)-1 {
			x.written[name] = true
		}
	}
}

// at returns line and column of a key, both from 1; of a key that is not there those of the nearest table around it.
func (x *index) at(key []string) (line, column int) {
	for n := len(key); n > 0; n-- {
		if offset, ok := x.offsets[dotted(key[:n])]; ok {
			return x.position(offset)
		}
	}
	return 1, 1
}

// position turns a byte offset into line and column, the column in characters.
func (x *index) position(offset int) (line, column int) {
	offset = max(0, min(offset, len(x.text)))
	line = sort.Search(len(x.lines), func(i int) bool { return x.lines[i] > offset })
	return line, utf8.RuneCountInString(x.text[x.lines[line-1]:offset]) + 1
}

// lineText is a line, counted from 1, without its end.
func (x *index) lineText(line int) string {
	text, _, _ := strings.Cut(x.text[x.lines[line-1]:], "\n")
	return strings.TrimSuffix(text, "\r")
}
