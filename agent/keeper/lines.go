package keeper

import (
	"bytes"
	"fmt"
	"strings"
)

// lineSplitter splits a stream into lines and truncates them to MaxLine bytes.
type lineSplitter struct {
	partial []byte
	cut     int // truncated bytes of the unfinished line
}

// write adds bytes and calls emit for each complete line.
func (s *lineSplitter) write(data []byte, emit func(string)) {
	for {
		piece, rest, ended := bytes.Cut(data, []byte{'\n'})
		room := min(len(piece), MaxLine-len(s.partial))
		if ended && len(s.partial) == 0 && room == len(piece) {
			emit(text(piece)) // the usual case, without a copy into partial
		} else {
			s.partial = append(s.partial, piece[:room]...)
			s.cut += len(piece) - room
			if ended {
				s.end(emit)
			}
		}
		if !ended {
			return
		}
		data = rest
	}
}

// end emits the unfinished line.
func (s *lineSplitter) end(emit func(string)) {
	if len(s.partial) == 0 && s.cut == 0 {
		emit("")
		return
	}
	line := text(s.partial)
	if s.cut > 0 {
		line = fmt.Sprintf("%s [%d bytes cut]", line, s.cut)
	}
	s.partial, s.cut = s.partial[:0], 0
	emit(line)
}

// text converts a line to valid UTF-8 without a carriage return at its end.
func text(line []byte) string {
	return strings.ToValidUTF8(string(bytes.TrimSuffix(line, []byte{'\r'})), "\uFFFD")
}

// tail stores the last lines of a process.
type tail struct{ lines []string }

func (t *tail) add(line string) {
	if len(t.lines) >= MaxLastLines {
		copy(t.lines, t.lines[1:])
		t.lines = t.lines[:MaxLastLines-1]
	}
	t.lines = append(t.lines, line)
}
