package relay

import (
	"fmt"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/repeat"
)

// conditionAway is active while an Envoy has no upstream server.
const conditionAway = "upstream-unreachable"

// away identifies what conditionAway says. Its sentence has the first error of a class, so that
// errors that differ in ports or times are one event.
type away struct {
	address string
	class   string // of the error; "": there is a connection
	state   State
}

// classOf returns the class of an error. A server that closes connections shows this at several
// places of a handshake.
func classOf(err error) string {
	text := err.Error()
	for _, closed := range []string{"connection reset", "broken pipe", "EOF", "server preface",
		"ended the stream"} {
		if strings.Contains(text, closed) {
			return "closes connections"
		}
	}
	return repeat.Class(text)
}

// showAway raises or clears the condition for the session that decides the status. Callers hold mu.
func (s *Server) showAway(worst state, next Status) {
	if worst.err == nil {
		s.away = away{}
		s.options.Board.Clear(conditionAway)
		return
	}
	now := away{worst.address, classOf(worst.err), next.State}
	if now == s.away {
		return
	}
	s.away = now
	consequence := "Envoy continues with what it has"
	if next.State == Cached {
		consequence = "Envoy is served the configuration that was accepted at " +
			next.Cache.Format(time.RFC3339)
	}
	s.options.Board.Raise(conditionAway, condition.Error, fmt.Sprintf(
		"no connection to the upstream server since %s: %s; %s",
		worst.since.Format(time.RFC3339), next.Error, consequence))
}
