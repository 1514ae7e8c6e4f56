package envoy

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// logFormat returns the value of --log-format for an epoch. parseLogLine reads this format.
func logFormat(epoch int) string {
	return "[Envoy (Epoch " + strconv.Itoa(epoch) + ")] [%Y-%m-%d %T.%e][%t][%l][%n] %v"
}

// logLine is one message of Envoy's log.
type logLine struct {
	Time      time.Time // millisecond precision; zero if unknown
	Epoch     int       // -1 if unknown
	Thread    int64     // kernel thread ID; 0 if unknown
	Level     string    // trace, debug, info, warning, error, critical; "" if unknown
	Component string    // Envoy's logger: main, config, upstream, …; "" if unknown
	Message   string    // may have several lines
	Continued bool      // the line continues the previous message and has its other fields
}

// MaxMessageBytes bounds a message, in bytes. Longer ones are split.
const MaxMessageBytes = 32 << 10

const logTimeLayout = "2006-01-02 15:04:05.000"

// parseLogLine parses a line in the format of logFormat, or in Envoy's default format, which Envoy
// uses before it has parsed its command line. ok is false for other lines. Envoy's times are in the
// local time zone.
func parseLogLine(line string) (parsed logLine, ok bool) {
	number := int64(-1)
	rest, ok := strings.CutPrefix(line, "[Envoy (Epoch ")
	if ok {
		var epoch string
		if epoch, rest, ok = strings.Cut(rest, ")] ["); !ok {
			return logLine{}, false
		}
		parsed, err := strconv.ParseUint(epoch, 10, 31)
		if err != nil {
			return logLine{}, false
		}
		number = int64(parsed)
	} else if rest, ok = strings.CutPrefix(line, "["); !ok {
		return logLine{}, false
	}
	stamp, rest, ok := strings.Cut(rest, "][")
	if !ok {
		return logLine{}, false
	}
	at, err := time.ParseInLocation(logTimeLayout, stamp, time.Local)
	if err != nil {
		return logLine{}, false
	}
	thread, rest, ok := strings.Cut(rest, "][")
	if !ok {
		return logLine{}, false
	}
	threadID, err := strconv.ParseUint(thread, 10, 63)
	if err != nil {
		return logLine{}, false
	}
	level, rest, ok := strings.Cut(rest, "][")
	if !ok || !isWord(level) {
		return logLine{}, false
	}
	component, message, ok := strings.Cut(rest, "]")
	if !ok || component == "" {
		return logLine{}, false
	}
	return logLine{
		Time: at, Epoch: int(number), Thread: int64(threadID), Level: level, Component: component,
		Message: strings.TrimPrefix(message, " "),
	}, true
}

func isWord(s string) bool {
	for _, r := range s {
		if r < 'a' || r > 'z' {
			return false
		}
	}
	return s != ""
}

// logParser assembles the lines of one Envoy into messages. A line in another format (the rest of a
// multi-line message, a backtrace, an access log on the same pipe) continues the previous message.
// The zero value is ready to use.
type logParser struct {
	last  logLine // the last message, without its text
	began bool
}

// Parse returns the messages of a batch of lines, in order, and buffers nothing: a line that
// continues the last message of the previous batch is returned as a message of its own, marked
// Continued.
func (p *logParser) Parse(lines []string) []logLine {
	var messages []logLine
	var text strings.Builder
	flush := func() {
		if len(messages) > 0 {
			messages[len(messages)-1].Message = text.String()
		}
		text.Reset()
	}
	add := func(line logLine, message string) {
		flush()
		messages = append(messages, line)
		text.WriteString(message)
	}
	for _, raw := range lines {
		raw = strings.TrimRight(raw, "\r\n")
		if line, ok := parseLogLine(raw); ok {
			message := line.Message
			line.Message = ""
			p.last, p.began = line, true
			p.last.Continued = true
			for first := true; first || message != ""; first = false {
				var part string
				part, message = cut(message)
				add(line, part)
				line.Continued = true
			}
			continue
		}
		if raw == "" && len(messages) == 0 {
			continue
		}
		for first := true; first || raw != ""; first = false {
			var part string
			part, raw = cut(raw)
			if len(messages) > 0 && text.Len()+1+len(part) <= MaxMessageBytes {
				text.WriteByte('\n')
				text.WriteString(part)
				continue
			}
			add(p.continuation(), part)
		}
	}
	flush()
	return messages
}

func (p *logParser) continuation() logLine {
	if !p.began {
		return logLine{Epoch: -1}
	}
	return p.last
}

// cut splits s after at most MaxMessageBytes bytes, at a character boundary.
func cut(s string) (part, rest string) {
	if len(s) <= MaxMessageBytes {
		return s, ""
	}
	end := MaxMessageBytes
	for end > MaxMessageBytes-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end], s[end:]
}
