package envoy

import (
	"regexp"
	"strings"
)

// Where Envoy 1.40 quotes all of what it was given: a message whose constraints do not hold, or that is of another type, in lines of its
// own behind a mark (Abseil's of debug output, followed by spaces that change) and before an empty line or what the complaint
// is; and JSON that is no message, to the end of what Envoy says (source/common/protobuf/utility.cc).
const (
	debugMark = "goo.gle/debug"

	// beforeNothing is before a text that is empty, as nobody starts an Envoy with a message in memory (source/server/server.cc).
	beforeNothing = "initializing config '"
)

var (
	quotedJSON = regexp.MustCompile(`(Unable to parse JSON as proto \(.*?\)): `)

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
	begun   bool // since lines were lost one was read that is not quoted
}

// quoting is what the lines are that follow.
type quoting int

const (
	quotesNothing quoting = iota
	quotesMessage         // in text format
	quotesJSON
)

// Lost says that the lines before the next one are not known: as long as they look like it, those that follow are taken as quoted.
func (d *Discretion) Lost() { *d = Discretion{} }

// Take returns the next lines without what is quoted in them.
func (d *Discretion) Take(lines []string) []string {
	kept, cut := make([]string, 0, len(lines)), false // cut: the last of kept goes on behind what it quotes
	for _, line := range lines {
		if d.quoting != quotesNothing || !d.begun {
			quoted, goesOn := d.look(line)
			if quoted {
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
	*d = Discretion{begun: true}
	return quoted, goesOn
}

// cut takes out of a line what it begins to quote.
func (d *Discretion) cut(line string) (rest string, cut bool) {
	if before, after, found := strings.Cut(line, debugMark); found {
		if !strings.HasSuffix(before, beforeNothing) && !onOneLine.MatchString(after) {
			d.quoting = quotesMessage
		}
		return strings.TrimSpace(before), d.quoting == quotesMessage
	}
	if found := quotedJSON.FindStringSubmatchIndex(line); found != nil {
		d.quoting = quotesJSON
		return line[:found[3]], false
	}
	return line, false
}

// Discreet takes out of the last lines of an Envoy what they quote of its configuration.
func Discreet(lines []string) []string { return new(Discretion).Take(lines) }

// DiscreetMessage takes out of what Envoy says of resources that it refuses what it quotes of them.
func DiscreetMessage(text string) string {
	known := Discretion{begun: true}
	return strings.Join(known.Take(strings.Split(text, "\n")), "\n")
}
