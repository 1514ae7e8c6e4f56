package envoy

import (
	"regexp"
	"strings"
	"time"
)

const (
	// Envoy 1.40 quotes its whole input behind these marks
	// (source/common/protobuf/utility.cc): a message in text format behind Abseil's mark of debug
	// output, which ends with variable letters and spaces; input that is not JSON of a message
	// behind the reason in parentheses. The list in agent/status/redact.go must have the same
	// marks.
	messageMark = "goo.gle/debug"
	jsonMark    = "Unable to parse JSON as proto"

	// beforeNothing precedes an empty quote: Outrider starts no Envoy with a bootstrap message in
	// memory (source/server/server.cc).
	beforeNothing = "initializing config '"

	// notShown replaces a quote at the end of a message.
	notShown = "(not shown)"

	// quoteTime bounds a quote, from its first line on. Envoy writes a quote at once, so later
	// lines are likely other output on the same pipe (an access log), which must not be lost. The
	// bound is generous, because later lines of a quote would be logged.
	quoteTime = 5 * time.Second
)

var (
	// A quoted message has lines of its own, from its mark up to an empty line or the reason.
	// Invalid JSON extends to the end of Envoy's output.
	quotedJSON = regexp.MustCompile(`(` + jsonMark + ` \(.*?\)): `)

	// onOneLine matches the text behind messageMark if the whole message is on the same line.
	onOneLine = regexp.MustCompile(`^[a-z]*\s+\S`)

	// afterDebug matches the beginning of the line after a message: ": why", or ", the next: why".
	// No line of a message begins like this.
	afterDebug = regexp.MustCompile(`^[:,] `)

	// likeQuoted matches lines of text-format messages and of JSON.
	likeQuoted = regexp.MustCompile(`^[\s"]|^[}\]],?$|^[a-z0-9_]+: |[{\[,]$`)
)

// LogRedactor removes Envoy's quotes of its configuration from its log: the log is readable for
// everybody, while the configuration may contain credentials. The zero value has no knowledge of
// earlier lines, see Lost.
type LogRedactor struct {
	quoting quoting
	begun   bool // a line outside a quote was read since the last loss
	// until is the latest end of a quote, or of what looks like one after a loss. It is zero before
	// the next line.
	until   time.Time
	leftOut int // removed lines not reported by LeftOut yet
}

// quoting is the kind of quote that the last line left open: the next lines may belong to it.
type quoting int

const (
	quotesNothing quoting = iota
	quotesMessage         // in text format
	quotesJSON
)

// Lost records a gap before the next line. Lines after it are removed as long as they look like a
// quote.
func (r *LogRedactor) Lost() { *r = LogRedactor{leftOut: r.leftOut} }

// LeftOut returns the number of lines removed since the last call, or 0 while a quote may continue.
// ended says that no lines follow.
func (r *LogRedactor) LeftOut(ended bool) int {
	if r.concealing() && !ended {
		return 0
	}
	number := r.leftOut
	r.leftOut = 0
	return number
}

// concealing reports whether the next line may belong to a quote.
func (r *LogRedactor) concealing() bool { return r.quoting != quotesNothing || !r.begun }

// expire ends a quote after quoteTime.
func (r *LogRedactor) expire() {
	switch {
	case !r.concealing():
	case r.until.IsZero():
		r.until = time.Now().Add(quoteTime)
	case time.Now().After(r.until):
		*r = LogRedactor{begun: true, leftOut: r.leftOut}
	}
}

// Take returns the next lines without quotes.
func (r *LogRedactor) Take(lines []string) []string {
	r.expire()
	// cut: the last line of kept continues behind its quote
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

// withoutEnd marks the end of a message as not shown. cut says that the message is the last line.
func withoutEnd(lines []string, cut bool) []string {
	if last := len(lines) - 1; cut {
		lines[last] += " " + notShown
		return lines
	}
	return append(lines, notShown)
}

// look reports whether a line belongs to a quote, or continues the message behind one.
func (r *LogRedactor) look(line string) (quoted, continues bool) {
	_, begins := ParseLogLine(line)
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
	*r = LogRedactor{begun: true, leftOut: r.leftOut}
	return quoted, continues
}

// cut removes the beginning of a quote from a line. It reports whether the message may continue
// behind the quote.
func (r *LogRedactor) cut(line string) (rest string, cut bool) {
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
func RedactLines(lines []string) []string { return new(LogRedactor).takeAll(lines) }

// RedactMessage removes quotes of the configuration from the error of a NACK.
func RedactMessage(text string) string {
	known := LogRedactor{begun: true}
	return strings.Join(known.takeAll(strings.Split(text, "\n")), "\n")
}

// takeAll is Take for lines after which none follow.
func (r *LogRedactor) takeAll(lines []string) []string {
	retained := r.Take(lines)
	if r.quoting == quotesMessage {
		retained = withoutEnd(retained, true) // the last line began the quote
	}
	return retained
}
