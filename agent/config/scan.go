package config

import "strings"

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
