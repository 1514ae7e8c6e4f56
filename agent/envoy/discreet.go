package envoy

import (
	"regexp"
	"strings"
)

// Where Envoy 1.40 quotes all of what it was given: the text of a message whose constraints do not hold, in lines of its own between
// the mark and what the complaint is (Abseil's mark of debug output, followed by spaces that change), and the JSON of a bootstrap that is
// no bootstrap, to the end of the message (source/common/protobuf/utility.cc).
const (
	debugMark  = "goo.gle/debug"
	afterDebug = ": " // begins the line that goes on after it; no line of the text does

	// beforeNothing is before a text that is empty, as nobody starts an Envoy with a message in memory (source/server/server.cc).
	beforeNothing = "initializing config '"
)

var quotedJSON = regexp.MustCompile(`(Unable to parse JSON as proto \(.*?\)): `)

// Discreet takes out of lines of Envoy's log what they quote of the configuration, which may hold credentials: what Envoy complains
// about is for everybody to read, its configuration is not. The first lines may be gone.
func Discreet(lines []string) []string {
	kept := make([]string, 0, len(lines))
	begun, quoting := false, false // a message has; inside of what is quoted
	for _, line := range lines {
		rest, follows := strings.CutPrefix(line, afterDebug)
		switch _, begins := ParseLogLine(line); {
		case begins:
			begun, quoting = true, false
		case quoting && follows:
			line, kept = kept[len(kept)-1]+" "+rest, kept[:len(kept)-1]
			quoting = false
		case quoting:
			continue
		case !begun && follows: // all before it was quoted, by a message whose beginning is gone
			line, kept, begun = rest, kept[:0], true
		case !begun && line == "}":
			kept = kept[:0]
			continue
		}
		if before, _, found := strings.Cut(line, debugMark); found {
			line, quoting = strings.TrimSpace(before), !strings.HasSuffix(before, beforeNothing)
		} else if found := quotedJSON.FindStringSubmatchIndex(line); found != nil {
			line, quoting = line[:found[3]], true
		}
		kept = append(kept, line)
	}
	return kept
}
