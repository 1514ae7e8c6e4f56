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

// The fields (interfaces.md, "Journal"), and the attributes that become them.
const (
	fieldComponent = "OUTRIDER_COMPONENT" // component
	fieldEpoch     = "OUTRIDER_EPOCH"     // epoch
	fieldInstance  = "OUTRIDER_INSTANCE"
	fieldResource  = "OUTRIDER_RESOURCE" // resource, resources: one field each
	fieldFile      = "CONFIG_FILE"       // file, config_file
	fieldFileLine  = "CONFIG_LINE"       // line, in that file, from 1
	fieldEnvoy     = "ENVOY_COMPONENT"   // envoy_component
	fieldMessageID = "MESSAGE_ID"        // event: one of condition's kinds

	ownComponent   = "agent" // of lines that name no component
	envoyComponent = "envoy" // of Envoy's own lines
)

// longestMessage bounds MESSAGE=, in bytes. Envoy's are bounded to less.
const longestMessage = 512 << 10

// handler is a slog.Handler of a journal.
type handler struct {
	journal *Journal
	level   slog.Leveler // what is below is not logged
	group   string       // of the attributes to come, with its dot
	with    line         // of WithAttrs
}

// line is what attributes make of a line.
type line struct {
	fields    []byte // encoded
	tail      []byte // " key=value …": what no field holds, and what people want to read
	problem   string // of error
	epoch     string
	component string
	pid       string // of Envoy, on its own lines
}

func (l *line) clone() line {
	return line{slices.Clone(l.fields), slices.Clone(l.tail), l.problem, l.epoch, l.component, l.pid}
}

// Enabled is whether a level is logged.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

// WithAttrs returns a handler whose lines all have the attributes.
func (h *handler) WithAttrs(attributes []slog.Attr) slog.Handler {
	more := &handler{h.journal, h.level, h.group, h.with.clone()}
	for _, a := range attributes {
		more.with.add(h.group, a)
	}
	return more
}

// WithGroup returns a handler that puts the group's name before the keys of the attributes to come.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &handler{h.journal, h.level, h.group + name + ".", h.with.clone()}
}

// add takes in an attribute.
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
		if id := MessageID(text); id != "" {
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
	case "config_file": // the message names them
		l.fields = appendField(l.fields, fieldFile, text)
		return
	case "config_line":
		l.fields = appendField(l.fields, fieldFileLine, text)
		return
	}
	l.tail = appendPair(l.tail, a.Key, text)
}

// buffers are what lines are encoded in.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Handle sends a line. It never waits, and never fails: a line that the journal does not take in time is counted, and the count
// is told.
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

// message is the text of a line: Envoy's as it is, ours with what went wrong and what else is known.
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
		text = fmt.Sprintf("%s… (%d bytes more)", strings.ToValidUTF8(text[:longestMessage], ""), len(text)-longestMessage)
	}
	return text
}

// priority is a level in the journal's scale (syslog(3)); Envoy's critical is above slog's error.
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

// appendCode names the line of the source that logs.
func appendCode(to []byte, pc uintptr) []byte {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	if frame.File == "" {
		return to
	}
	to = appendField(to, "CODE_FILE", path.Join(path.Base(path.Dir(frame.File)), path.Base(frame.File)))
	to = appendNumber(to, "CODE_LINE", int64(frame.Line))
	return appendField(to, "CODE_FUNC", frame.Function)
}
