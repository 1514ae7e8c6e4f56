package envoy

import (
	"regexp"
	"strings"
	"time"
)

const (
	// Envoy 1.40 quotes all of what it was given behind these marks (source/common/protobuf/utility.cc):
	// a message in text format behind Abseil's mark of debug output, which goes on with letters and
	// spaces that change; a text that is not the JSON of a message behind the reason in parentheses.
	// The list in agent/status/redact.go has the same marks.
	messageMark = "goo.gle/debug"
	jsonMark    = "Unable to parse JSON as proto"

	// beforeNothing is before a text that is empty, as nobody starts an Envoy with a message in memory (source/server/server.cc).
	beforeNothing = "initializing config '"

	// notShown ends a complaint that ends with what it quotes.
	notShown = "(not shown)"

	// quoteTime bounds a quote, from when its first line is read: Envoy writes it at once, and what others write to the same pipe (an
	// access log) is not to be lost with it for longer. It is generous, as a part of a quote that comes later is told.
	quoteTime = 5 * time.Second
)

// A message is in lines of its own behind its mark, and before an empty line or what the complaint is; JSON that is no message goes on to
// the end of what Envoy says.
var (
	quotedJSON = regexp.MustCompile(`(` + jsonMark + ` \(.*?\)): `)

	// onOneLine is what follows the mark's first half if the message does, too.
	onOneLine = regexp.MustCompile(`^[a-z]*\s+\S`)

	// afterDebug begins the line that goes on after a message: ": why", or ", the next: why". No line of a message does.
	afterDebug = regexp.MustCompile(`^[:,] `)

	// likeQuoted are the lines of a message's text, and of JSON.
	likeQuoted = regexp.MustCompile(`^[\s"]|^[}\]],?$|^[a-z0-9_]+: |[{\[,]$`)
)

// Discretion takes out of Envoy's log what Envoy quotes of its configuration, which may hold credentials: what it complains about is
// for everybody to read, its configuration is not. The zero value knows nothing of what was said before.
type Discretion struct {
	quoting quoting
	begun   bool      // since lines were lost one was read that is not quoted
	until   time.Time // when a quote is over at the latest, or what looks like one after a loss; zero: no line was read since
	leftOut int       // lines that nobody was told of
}

// quoting is what the lines are that follow.
type quoting int

const (
	quotesNothing quoting = iota
	quotesMessage         // in text format
	quotesJSON
)

// Lost says that the lines before the next one are not known: as long as they look like it, those that follow are taken as quoted.
func (d *Discretion) Lost() { *d = Discretion{leftOut: d.leftOut} }

// LeftOut is how many lines were left out since it was asked last, once that is over; ended says that no more will come.
func (d *Discretion) LeftOut(ended bool) int {
	if d.concealing() && !ended {
		return 0
	}
	number := d.leftOut
	d.leftOut = 0
	return number
}

// concealing is whether the next line may be quoted.
func (d *Discretion) concealing() bool { return d.quoting != quotesNothing || !d.begun }

// expire ends a quote that lasts too long.
func (d *Discretion) expire() {
	switch {
	case !d.concealing():
	case d.until.IsZero():
		d.until = time.Now().Add(quoteTime)
	case time.Now().After(d.until):
		*d = Discretion{begun: true, leftOut: d.leftOut}
	}
}

// Take returns the next lines without what is quoted in them.
func (d *Discretion) Take(lines []string) []string {
	d.expire()
	kept, cut := make([]string, 0, len(lines)), false // cut: the last of kept goes on behind what it quotes
	for _, line := range lines {
		if d.concealing() {
			before := d.quoting
			quoted, goesOn := d.look(line)
			if before == quotesMessage && d.quoting == quotesNothing && !goesOn {
				kept, cut = withoutEnd(kept, cut), false
			}
			if quoted {
				d.leftOut++
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
		line, cut = d.cut(line)
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
func (d *Discretion) look(line string) (quoted, goesOn bool) {
	_, begins := ParseLogLine(line)
	switch {
	case begins:
	case d.quoting == quotesJSON:
		return true, false
	case afterDebug.MatchString(line):
		goesOn = true
	case d.quoting == quotesMessage && line == "":
		quoted = true // the last of it
	case d.quoting == quotesMessage || likeQuoted.MatchString(line):
		return true, false
	}
	*d = Discretion{begun: true, leftOut: d.leftOut}
	return quoted, goesOn
}

// cut takes out of a line what it begins to quote.
func (d *Discretion) cut(line string) (rest string, cut bool) {
	if before, after, found := strings.Cut(line, messageMark); found {
		before = strings.TrimSpace(before)
		switch {
		case strings.HasSuffix(before, beforeNothing):
			return before, false
		case onOneLine.MatchString(after):
			return before + " " + notShown, false
		}
		d.quoting, d.until = quotesMessage, time.Now().Add(quoteTime)
		return before, true
	}
	if found := quotedJSON.FindStringSubmatchIndex(line); found != nil {
		d.quoting, d.until = quotesJSON, time.Now().Add(quoteTime)
		return line[:found[3]], false
	}
	return line, false
}

// Discreet takes out of the last lines of an Envoy what they quote of its configuration.
func Discreet(lines []string) []string { return new(Discretion).takeAll(lines) }

// DiscreetMessage takes out of what Envoy says of resources that it refuses what it quotes of them.
func DiscreetMessage(text string) string {
	known := Discretion{begun: true}
	return strings.Join(known.takeAll(strings.Split(text, "\n")), "\n")
}

// takeAll takes lines after which none will come.
func (d *Discretion) takeAll(lines []string) []string {
	kept := d.Take(lines)
	if d.quoting == quotesMessage {
		kept = withoutEnd(kept, true) // as it is what began the quote
	}
	return kept
}
