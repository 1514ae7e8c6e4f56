package envoy

import (
	"regexp"
	"strings"
	"time"
)

const (
	// Envoy 1.40 quotes its whole input after these marks (source/common/protobuf/utility.cc).
	// messageMark is how Abseil marks its debug output of a message in text format; variable
	// letters and spaces follow it. jsonMark is followed by a reason in parentheses and then the
	// JSON. agent/redact/redact.go must list the same marks.
	messageMark = "goo.gle/debug"
	jsonMark    = "Unable to parse JSON as proto"

	// beforeNothing precedes Envoy's quote of a bootstrap that was passed in memory
	// (source/server/server.cc). The quote is always empty, because Outrider passes a file.
	beforeNothing = "initializing config '"

	// notShown replaces a quotation of the configuration at the end of a message.
	notShown = "(not shown)"

	// quoteTime bounds the duration of a quote from its first line. Envoy writes a quote at once,
	// so later lines are probably other output on the same pipe (an access log), which must not be
	// lost. The bound is generous, because lines of a quote that arrive later would be logged.
	quoteTime = 5 * time.Second
)

var (
	// quotedJSON matches the mark before a quote of invalid JSON. Such a quote extends to the end
	// of the log message; a quoted protobuf message in text format extends from messageMark to an
	// empty line or to a line that afterDebug matches.
	quotedJSON = regexp.MustCompile(`(` + jsonMark + ` \(.*?\)): `)

	// onOneLine matches the text after messageMark if the whole message is on one line.
	onOneLine = regexp.MustCompile(`^[a-z]*\s+\S`)

	// afterDebug matches the beginning of the line that follows a message: ": reason", or ", the
	// next: reason". No line of a message begins like this.
	afterDebug = regexp.MustCompile(`^[:,] `)

	// likeQuoted matches lines that may be part of a text-format message or of JSON.
	likeQuoted = regexp.MustCompile(`^[\s"]|^[}\]],?$|^[a-z0-9_]+: |[{\[,]$`)
)

// logRedactor removes quotes of the configuration from Envoy's log. Everybody may read the log, but
// the configuration may contain credentials. The zero value assumes that earlier lines were lost,
// see markGap.
type logRedactor struct {
	quoting quoting
	begun   bool // a line outside a quote was read since the last gap
	// until is the time at which removal ends, of a quote or of lines after a gap that look like a
	// quote. It is zero until the first line after a gap.
	until   time.Time
	leftOut int // removed lines that removedLines has not returned yet
}

// quoting is the kind of quote that continues after the last line, so that the next lines may
// belong to it.
type quoting int

const (
	quotesNothing quoting = iota
	quotesMessage         // in text format
	quotesJSON
)

// markGap records that lines were lost before the next one. The following lines are removed as long
// as they look like a quote.
func (r *logRedactor) markGap() { *r = logRedactor{leftOut: r.leftOut} }

// removedLines returns the number of lines removed since the last call, or 0 while a quote may
// continue. ended reports that no more lines follow.
func (r *logRedactor) removedLines(ended bool) int {
	if r.concealing() && !ended {
		return 0
	}
	number := r.leftOut
	r.leftOut = 0
	return number
}

// concealing reports whether the next line may belong to a quote.
func (r *logRedactor) concealing() bool { return r.quoting != quotesNothing || !r.begun }

// expire ends a quote after quoteTime.
func (r *logRedactor) expire() {
	switch {
	case !r.concealing():
	case r.until.IsZero():
		r.until = time.Now().Add(quoteTime)
	case time.Now().After(r.until):
		*r = logRedactor{begun: true, leftOut: r.leftOut}
	}
}

// redact returns the lines without quotes.
func (r *logRedactor) redact(lines []string) []string {
	r.expire()
	// cut reports that the message of the last retained line continues after the removed quote
	retained, cut := make([]string, 0, len(lines)), false
	for _, line := range lines {
		if r.concealing() {
			before := r.quoting
			quoted, continues := r.look(line)
			if before == quotesMessage && r.quoting == quotesNothing && !continues {
				retained, cut = withoutEnd(retained, cut), false
			}
			if quoted {
				r.leftOut++
				continue
			}
			if continues {
				line = strings.TrimPrefix(line, ":")
			}
			if last := len(retained) - 1; continues && cut {
				line, retained = retained[last]+line, retained[:last]
			}
			line = strings.TrimPrefix(line, " ")
		}
		line, cut = r.cut(line)
		retained = append(retained, line)
	}
	return retained
}

// withoutEnd replaces the removed end of a message by notShown. With cut, the last line is the
// beginning of that message; otherwise its beginning was forwarded earlier.
func withoutEnd(lines []string, cut bool) []string {
	if last := len(lines) - 1; cut {
		lines[last] += " " + notShown
		return lines
	}
	return append(lines, notShown)
}

// look reports whether a line belongs to a quotation of the configuration, or continues a message
// after the quotation.
func (r *logRedactor) look(line string) (quoted, continues bool) {
	_, begins := parseLogLine(line)
	switch {
	case begins:
	case r.quoting == quotesJSON:
		return true, false
	case afterDebug.MatchString(line):
		continues = true
	case r.quoting == quotesMessage && line == "":
		quoted = true // the last line of the quote
	case r.quoting == quotesMessage || likeQuoted.MatchString(line):
		return true, false
	}
	*r = logRedactor{begun: true, leftOut: r.leftOut}
	return quoted, continues
}

// cut removes the beginning of a quote from a line. It reports whether the message may continue
// after the quote.
func (r *logRedactor) cut(line string) (rest string, cut bool) {
	if before, after, found := strings.Cut(line, messageMark); found {
		before = strings.TrimSpace(before)
		switch {
		case strings.HasSuffix(before, beforeNothing):
			return before, false
		case onOneLine.MatchString(after):
			return before + " " + notShown, false
		}
		r.quoting, r.until = quotesMessage, time.Now().Add(quoteTime)
		return before, true
	}
	if found := quotedJSON.FindStringSubmatchIndex(line); found != nil {
		r.quoting, r.until = quotesJSON, time.Now().Add(quoteTime)
		return line[:found[3]], false
	}
	return line, false
}

// RedactLines removes quotes of the configuration from the last log lines of an Envoy.
func RedactLines(lines []string) []string { return new(logRedactor).takeAll(lines) }

// RedactMessage removes quotes of the configuration from the error of a NACK.
func RedactMessage(text string) string {
	known := logRedactor{begun: true}
	return strings.Join(known.takeAll(strings.Split(text, "\n")), "\n")
}

// takeAll is redact for a complete sequence of lines.
func (r *logRedactor) takeAll(lines []string) []string {
	retained := r.redact(lines)
	if r.quoting == quotesMessage {
		retained = withoutEnd(retained, true) // the last line ends within a quote
	}
	return retained
}
