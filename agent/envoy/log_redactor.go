package envoy

import (
	"regexp"
	"strings"
	"time"
)

const (
	// Envoy 1.40 quotes all of what it was given behind these marks
	// (source/common/protobuf/utility.cc): a message in text format behind Abseil's mark of debug
	// output, which goes on with letters and spaces that change; a text that is not the JSON of a
	// message behind the reason in parentheses. The list in agent/status/redact.go has the same
	// marks.
	messageMark = "goo.gle/debug"
	jsonMark    = "Unable to parse JSON as proto"

	// beforeNothing is before a text that is empty, as nobody starts an Envoy with a message in
	// memory (source/server/server.cc).
	beforeNothing = "initializing config '"

	// notShown ends a complaint that ends with what it quotes.
	notShown = "(not shown)"

	// quoteTime bounds a quote, from when its first line is read: Envoy writes it at once, and what
	// others write to the same pipe (an access log) is not to be lost with it for longer. It is
	// generous, as a part of a quote that comes later is told.
	quoteTime = 5 * time.Second
)

// A message is in lines of its own behind its mark, and before an empty line or what the complaint
// is; JSON that is no message goes on to the end of what Envoy says.
var (
	quotedJSON = regexp.MustCompile(`(` + jsonMark + ` \(.*?\)): `)

	// onOneLine is what follows the mark's first half if the message does, too.
	onOneLine = regexp.MustCompile(`^[a-z]*\s+\S`)

	// afterDebug begins the line that goes on after a message: ": why", or ", the next: why". No
	// line of a message does.
	afterDebug = regexp.MustCompile(`^[:,] `)

	// likeQuoted are the lines of a message's text, and of JSON.
	likeQuoted = regexp.MustCompile(`^[\s"]|^[}\]],?$|^[a-z0-9_]+: |[{\[,]$`)
)

// LogRedactor takes out of Envoy's log what Envoy quotes of its configuration, which may hold
// credentials: what it complains about is for everybody to read, its configuration is not. The zero
// value knows nothing of what was said before.
type LogRedactor struct {
	quoting quoting
	begun   bool // since lines were lost one was read that is not quoted
	// when a quote is over at the latest, or what looks like one after a loss; zero: no line was
	// read since
	until   time.Time
	leftOut int // lines that nobody was told of
}

// quoting is what the lines are that follow.
type quoting int

const (
	quotesNothing quoting = iota
	quotesMessage         // in text format
	quotesJSON
)

// Lost says that the lines before the next one are not known: as long as they look like it, those
// that follow are taken as quoted.
func (r *LogRedactor) Lost() { *r = LogRedactor{leftOut: r.leftOut} }

// LeftOut is how many lines were left out since it was asked last, once that is over; ended says
// that no more will come.
func (r *LogRedactor) LeftOut(ended bool) int {
	if r.concealing() && !ended {
		return 0
	}
	number := r.leftOut
	r.leftOut = 0
	return number
}

// concealing is whether the next line may be quoted.
func (r *LogRedactor) concealing() bool { return r.quoting != quotesNothing || !r.begun }

// expire ends a quote that lasts too long.
func (r *LogRedactor) expire() {
	switch {
	case !r.concealing():
	case r.until.IsZero():
		r.until = time.Now().Add(quoteTime)
	case time.Now().After(r.until):
		*r = LogRedactor{begun: true, leftOut: r.leftOut}
	}
}

// Take returns the next lines without what is quoted in them.
func (r *LogRedactor) Take(lines []string) []string {
	r.expire()
	// cut: the last of kept goes on behind what it quotes
	kept, cut := make([]string, 0, len(lines)), false
	for _, line := range lines {
		if r.concealing() {
			before := r.quoting
			quoted, goesOn := r.look(line)
			if before == quotesMessage && r.quoting == quotesNothing && !goesOn {
				kept, cut = withoutEnd(kept, cut), false
			}
			if quoted {
				r.leftOut++
				continue
			}
			if goesOn {
				line = strings.TrimPrefix(line, ":")
			}
			if last := len(kept) - 1; goesOn && cut {
				line, kept = kept[last]+line, kept[:last]
			}
			line = strings.TrimPrefix(line, " ")
		}
		line, cut = r.cut(line)
		kept = append(kept, line)
	}
	return kept
}

// withoutEnd says of a complaint that its end is not shown; cut: it is the last line.
func withoutEnd(lines []string, cut bool) []string {
	if last := len(lines) - 1; cut {
		lines[last] += " " + notShown
		return lines
	}
	return append(lines, notShown)
}

// look tells whether a line belongs to what is quoted, or goes on after it.
func (r *LogRedactor) look(line string) (quoted, goesOn bool) {
	_, begins := ParseLogLine(line)
	switch {
	case begins:
	case r.quoting == quotesJSON:
		return true, false
	case afterDebug.MatchString(line):
		goesOn = true
	case r.quoting == quotesMessage && line == "":
		quoted = true // the last of it
	case r.quoting == quotesMessage || likeQuoted.MatchString(line):
		return true, false
	}
	*r = LogRedactor{begun: true, leftOut: r.leftOut}
	return quoted, goesOn
}

// cut takes out of a line what it begins to quote.
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

// RedactLines takes out of the last lines of an Envoy what they quote of its configuration.
func RedactLines(lines []string) []string { return new(LogRedactor).takeAll(lines) }

// RedactMessage takes out of what Envoy says of resources that it refuses what it quotes of them.
func RedactMessage(text string) string {
	known := LogRedactor{begun: true}
	return strings.Join(known.takeAll(strings.Split(text, "\n")), "\n")
}

// takeAll takes lines after which none will come.
func (r *LogRedactor) takeAll(lines []string) []string {
	kept := r.Take(lines)
	if r.quoting == quotesMessage {
		kept = withoutEnd(kept, true) // as it is what began the quote
	}
	return kept
}
