package status

import (
	"bufio"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
)

// openMetricsReader converts OpenMetrics 1.0 text to the text format 0.0.4, line by line:
// prometheus/common has no parser for it. Units, exemplars and creation times, which the older
// format lacks, are dropped.
type openMetricsReader struct {
	lines *bufio.Reader
	types map[string]string // family → type
	help  map[string]string // family → its HELP line, until the type is known
	text  strings.Builder
	ready string // converted but not read yet
	err   error
}

func newOpenMetricsReader(source io.Reader) *openMetricsReader {
	return &openMetricsReader{lines: bufio.NewReaderSize(source, 64<<10),
		types: map[string]string{}, help: map[string]string{}}
}

// Read implements io.Reader.
func (o *openMetricsReader) Read(p []byte) (int, error) {
	for o.ready == "" {
		if o.err != nil {
			return 0, o.err
		}
		line, err := readLine(o.lines)
		o.err = err
		if errors.Is(err, errLineTooLong) {
			o.err = nil
			continue
		}
		o.text.Reset()
		o.convert(string(line))
		o.ready = o.text.String()
	}
	n := copy(p, o.ready)
	o.ready = o.ready[n:]
	return n, nil
}

// convert converts a line and appends the result to ready.
func (o *openMetricsReader) convert(line string) {
	if line == "# EOF" {
		o.err = io.EOF
		return
	}
	comment, ok := strings.CutPrefix(line, "# ")
	if !ok {
		o.sample(line)
		return
	}
	keyword, rest, _ := strings.Cut(comment, " ")
	family, value, _ := strings.Cut(rest, " ")
	switch keyword {
	case "TYPE":
		o.types[family] = value
		if name, kind := textType(family, value); kind != "" {
			if help, ok := o.help[family]; ok {
				o.put("# HELP ", name, " ", help)
				delete(o.help, family)
			}
			o.put("# TYPE ", name, " ", kind)
		}
	case "HELP":
		kind, known := o.types[family]
		if !known {
			o.help[family] = value
			return
		}
		if name, kind := textType(family, kind); kind != "" {
			o.put("# HELP ", name, " ", value)
		}
	}
}

// textType returns a family's name and type in the older format. The type is "" if there is no
// equivalent.
func textType(family, kind string) (name, textKind string) {
	switch kind {
	case "counter":
		return suffixed(family, "_total"), "counter"
	case "info":
		return suffixed(family, "_info"), "gauge"
	case "gauge", "stateset":
		return family, "gauge"
	case "histogram", "summary":
		return family, kind
	case "unknown":
		return family, "untyped"
	}
	return family, ""
}

// suffixed appends a suffix to a name, inside the name's quotes if it is quoted.
func suffixed(name, suffix string) string {
	if bare, ok := strings.CutSuffix(name, `"`); ok {
		return bare + suffix + `"`
	}
	return name + suffix
}

func (o *openMetricsReader) sample(line string) {
	name, ok := familyOf([]byte(line))
	if !ok {
		return
	}
	if family, created := strings.CutSuffix(name, "_created"); created {
		if kind := o.types[family]; kind == "counter" || kind == "histogram" || kind == "summary" {
			return
		}
	}
	end := labelsEnd(line)
	value, _, _ := strings.Cut(line[end:], " # ") // an exemplar may follow " # "
	fields := strings.Fields(value)
	if len(fields) == 2 { // convert seconds to milliseconds
		seconds, err := strconv.ParseFloat(fields[1], 64)
		if err != nil || math.IsNaN(seconds) || math.Abs(seconds) > math.MaxInt64/1000 {
			o.put(line) // keep the malformed line: the parser reports it
			return
		}
		value = fields[0] + " " + strconv.FormatInt(int64(math.Round(seconds*1000)), 10)
	}
	o.put(line[:end], " ", strings.TrimSpace(value))
}

// labelsEnd returns the offset of the first byte after the name and labels of a sample.
func labelsEnd(line string) int {
	quoted, open := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			open = true
		case c == '}':
			return i + 1
		case c == ' ' && !open:
			return i
		}
	}
	return len(line)
}

func (o *openMetricsReader) put(parts ...string) {
	for _, part := range parts {
		o.text.WriteString(part)
	}
	o.text.WriteByte('\n')
}
