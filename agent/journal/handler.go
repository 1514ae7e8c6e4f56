package journal

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Journal fields. Each comment names the slog attributes that set the field.
const (
	fieldComponent = "OUTRIDER_COMPONENT" // attribute component
	fieldEpoch     = "OUTRIDER_EPOCH"     // attribute epoch
	fieldInstance  = "OUTRIDER_INSTANCE"
	fieldResource  = "OUTRIDER_RESOURCE" // attributes resource and resources: one field per name
	fieldFile      = "CONFIG_FILE"       // attributes file and config_file
	fieldFileLine  = "CONFIG_LINE"       // attribute line, counted from 1
	fieldEnvoy     = "ENVOY_COMPONENT"   // attribute envoy_component
	fieldMessageID = "MESSAGE_ID"        // attribute event: a kind of the condition package

	ownComponent   = "agent" // default component
	envoyComponent = "envoy" // component of Envoy's log lines
)

// longestMessage is the maximum length of MESSAGE= in bytes. Envoy's messages have a lower limit.
const longestMessage = 512 << 10

// handler is the slog.Handler of a Journal.
type handler struct {
	journal *Journal
	level   slog.Leveler // minimum level
	group   string       // prefix of further attributes, with a trailing dot
	with    line         // attributes of WithAttrs
}

// line collects the attributes of a log line.
type line struct {
	fields    []byte // encoded journal fields
	tail      []byte // " key=value …": attributes to append to the message
	problem   string // text of the error attribute
	epoch     string
	component string
	pid       string // PID of the Envoy process, in Envoy's lines
}

func (l *line) clone() line {
	return line{slices.Clone(l.fields), slices.Clone(l.tail), l.problem, l.epoch,
		l.component, l.pid}
}

// Enabled reports whether a level is logged.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

// WithAttrs returns a handler that adds the attributes to all lines.
func (h *handler) WithAttrs(attributes []slog.Attr) slog.Handler {
	more := &handler{h.journal, h.level, h.group, h.with.clone()}
	for _, a := range attributes {
		more.with.add(h.group, a)
	}
	return more
}

// WithGroup returns a handler that prefixes the keys of further attributes with the group's name.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &handler{h.journal, h.level, h.group + name + ".", h.with.clone()}
}

// add adds an attribute.
func (l *line) add(group string, a slog.Attr) {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, member := range value.Group() {
			l.add(group, member)
		}
		return
	}
	if a.Key == "" {
		return
	}
	text := value.String()
	if group != "" {
		l.tail = appendPair(l.tail, group+a.Key, text)
		return
	}
	switch a.Key {
	case "component":
		l.component = text
		return
	case "epoch":
		if kind := value.Kind(); kind == slog.KindInt64 || kind == slog.KindUint64 {
			l.epoch = text
			return
		}
	case "pid":
		l.pid = text
	case "envoy_component":
		l.fields = appendField(l.fields, fieldEnvoy, text)
		return
	case "event":
		if id := messageID(text); id != "" {
			l.fields = appendField(l.fields, fieldMessageID, id)
		}
		return
	case "error":
		if failure, ok := value.Any().(error); ok {
			text = failure.Error()
		}
		if value.Any() != nil {
			l.problem = text
		}
		return
	case "resource", "resources":
		for name := range strings.SplitSeq(text, ", ") {
			l.fields = appendField(l.fields, fieldResource, name)
		}
	case "file":
		l.fields = appendField(l.fields, fieldFile, text)
	case "line":
		l.fields = appendField(l.fields, fieldFileLine, text)
	case "config_file": // the message contains the position
		l.fields = appendField(l.fields, fieldFile, text)
		return
	case "config_line":
		l.fields = appendField(l.fields, fieldFileLine, text)
		return
	}
	l.tail = appendPair(l.tail, a.Key, text)
}

// buffers holds reusable buffers for encoding.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Handle sends a line. It never blocks or fails. Lines that the journal does not accept in time are
// counted, and a later line reports the count.
func (h *handler) Handle(_ context.Context, record slog.Record) error {
	l := h.with
	if record.NumAttrs() > 0 {
		l = h.with.clone()
		record.Attrs(func(a slog.Attr) bool { l.add(h.group, a); return true })
	}
	if l.component == "" {
		l.component = ownComponent
	}
	level := priority(record.Level)
	buffer := buffers.Get().(*[]byte)
	entry := h.journal.constant(append((*buffer)[:0], l.fields...), level, l.component)
	epoch := l.epoch
	if current := h.journal.epoch.Load(); epoch == "" && current >= 0 {
		epoch = strconv.FormatInt(current, 10)
	}
	if epoch != "" {
		entry = appendField(entry, fieldEpoch, epoch)
	}
	switch {
	case l.component == envoyComponent:
		entry = appendField(entry, "SYSLOG_PID", l.pid)
	case record.PC != 0:
		entry = appendCode(entry, record.PC)
	}
	entry = appendField(entry, "MESSAGE", l.message(record.Message))
	*buffer = h.journal.send(entry, level)
	buffers.Put(buffer)
	return nil
}

// message returns the text of a line: Envoy's text unchanged, or text with the error and
// attributes.
func (l *line) message(text string) string {
	if l.component != envoyComponent {
		var built strings.Builder
		built.WriteString(text)
		if l.problem != "" {
			built.WriteString(": " + l.problem)
		}
		if l.epoch != "" && !strings.Contains(text, "epoch "+l.epoch) {
			built.WriteString(" epoch=" + l.epoch)
		}
		built.Write(l.tail)
		text = built.String()
	}
	if len(text) > longestMessage {
		text = fmt.Sprintf("%s… (%d bytes more)", strings.ToValidUTF8(text[:longestMessage], ""),
			len(text)-longestMessage)
	}
	return text
}

// priority converts a level to a syslog(3) priority. Envoy's critical is above slog's error.
func priority(level slog.Level) int {
	switch {
	case level > slog.LevelError:
		return 2
	case level >= slog.LevelError:
		return 3
	case level >= slog.LevelWarn:
		return 4
	case level > slog.LevelInfo:
		return 5
	case level >= slog.LevelInfo:
		return 6
	default:
		return 7
	}
}

// appendCode appends the source position of the logging call.
func appendCode(to []byte, pc uintptr) []byte {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	if frame.File == "" {
		return to
	}
	to = appendField(to, "CODE_FILE",
		path.Join(path.Base(path.Dir(frame.File)), path.Base(frame.File)))
	to = appendNumber(to, "CODE_LINE", int64(frame.Line))
	return appendField(to, "CODE_FUNC", frame.Function)
}
