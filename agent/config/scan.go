package config

import (
	"sort"
	"strconv"
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

// scanner walks over a TOML text and reports its keys. It never fails: on text that is not TOML it goes on at the next
// line.
type scanner struct {
	text  string
	next  int                            // byte offset
	found func(key []string, offset int) // a full key and where its line mentions it
}

func (s *scanner) document() {
	var table []string
	for {
		s.blank(true)
		if s.next >= len(s.text) {
			return
		}
		offset := s.next
		if s.skip('[') {
			s.skip('[')
			table = s.key()
			if len(table) > 0 {
				s.found(table, offset)
			}
		} else {
			s.pair(table)
		}
		s.line()
	}
}

// pair scans key = value, the key being relative to table.
func (s *scanner) pair(table []string) {
	offset := s.next
	key := s.key()
	if len(key) == 0 || !s.skip('=') {
		return
	}
	full := append(append(make([]string, 0, len(table)+len(key)), table...), key...)
	s.found(full, offset)
	s.value(full)
}

// key scans a dotted key and the blanks around it; nil if there is none.
func (s *scanner) key() []string {
	var parts []string
	for {
		s.blank(false)
		var part string
		switch c := s.peek(); {
		case c == '"':
			part = s.quoted()
		case c == '\'':
			part = s.literal()
		case isBare(c):
			start := s.next
			for isBare(s.peek()) {
				s.next++
			}
			part = s.text[start:s.next]
		default:
			return nil
		}
		parts = append(parts, part)
		s.blank(false)
		if !s.skip('.') {
			return parts
		}
	}
}

// value scans over a value; keys of inline tables in it, also in arrays, belong to key.
func (s *scanner) value(key []string) {
	s.blank(false)
	switch s.peek() {
	case '"', '\'':
		s.anyString()
	case '[':
		s.next++
		s.list(']', func() { s.value(key) })
	case '{':
		s.next++
		s.list('}', func() { s.pair(key) })
	default:
		if end := strings.IndexAny(s.text[s.next:], ",]}#\r\n"); end >= 0 {
			s.next += end
		} else {
			s.next = len(s.text)
		}
	}
}

// list scans items between commas up to and including the closing bracket.
func (s *scanner) list(closing byte, item func()) {
	for {
		s.blank(true)
		start := s.next
		if s.next >= len(s.text) || s.skip(closing) {
			return
		}
		if s.skip(',') {
			continue
		}
		item()
		if s.next == start {
			s.next++ // not TOML; go on behind it
		}
	}
}

// anyString scans over a string of any of the four kinds.
func (s *scanner) anyString() {
	quote := s.text[s.next : s.next+1]
	fence := strings.Repeat(quote, 3)
	if !strings.HasPrefix(s.text[s.next:], fence) {
		if quote == `"` {
			s.quoted()
		} else {
			s.literal()
		}
		return
	}
	for s.next += 3; s.next < len(s.text); s.next++ {
		switch {
		case s.text[s.next] == '\\' && quote == `"`:
			s.next++
		case strings.HasPrefix(s.text[s.next:], fence):
			s.next += 3
			for range 2 { // a string may end with one or two quotes of its own
				s.skip(quote[0])
			}
			return
		}
	}
	s.next = min(s.next, len(s.text))
}

// quoted scans a basic string on one line and returns what it says.
func (s *scanner) quoted() string {
	start := s.next
	for s.next++; s.next < len(s.text); s.next++ {
		switch s.text[s.next] {
		case '\\':
			s.next++
		case '"':
			s.next++
			return unescape(s.text[start+1 : s.next-1])
		case '\n':
			return s.text[start:s.next]
		}
	}
	s.next = min(s.next, len(s.text))
	return s.text[start:]
}

// literal scans a literal string on one line and returns what it says.
func (s *scanner) literal() string {
	start := s.next
	for s.next++; s.next < len(s.text) && s.text[s.next] != '\n'; s.next++ {
		if s.text[s.next] == '\'' {
			s.next++
			return s.text[start+1 : s.next-1]
		}
	}
	return s.text[start:s.next]
}

// blank scans over spaces and tabs, with newlines also over line ends and comments.
func (s *scanner) blank(newlines bool) {
	for s.next < len(s.text) {
		switch c := s.text[s.next]; {
		case c == ' ' || c == '\t':
			s.next++
		case newlines && (c == '\n' || c == '\r'):
			s.next++
		case newlines && c == '#':
			s.line()
		default:
			return
		}
	}
}

// line scans to the end of the line.
func (s *scanner) line() {
	if end := strings.IndexByte(s.text[s.next:], '\n'); end >= 0 {
		s.next += end
	} else {
		s.next = len(s.text)
	}
}

func (s *scanner) peek() byte {
	if s.next >= len(s.text) {
		return 0
	}
	return s.text[s.next]
}

func (s *scanner) skip(c byte) bool {
	if s.next < len(s.text) && s.text[s.next] == c {
		s.next++
		return true
	}
	return false
}

// isBare tells whether a key may hold c without quotes.
func isBare(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// escapes are TOML's escapes of one letter.
const escapes = "b\bt\tn\nf\fr\re\x1b\"\"\\\\"

// unescape resolves the escapes of a basic string; what is no escape stays.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		if digits > 0 && i+digits < len(s) {
			if code, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32); err == nil {
				b.WriteRune(rune(code))
				i += digits
				continue
			}
		}
		for e := 0; e < len(escapes); e += 2 {
			if escapes[e] == s[i] {
				b.WriteByte(escapes[e+1])
			}
		}
	}
	return b.String()
}

// dotted joins the parts of a key as TOML writes it.
func dotted(key []string) string {
	var b strings.Builder
	for i, part := range key {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(bareOrQuoted(part))
	}
	return b.String()
}

func bareOrQuoted(part string) string {
	for i := range len(part) {
		if !isBare(part[i]) {
			return quote(part)
		}
	}
	if part == "" {
		return `""`
	}
	return part
}
