package relay

import (
	"fmt"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/repeat"
)

// conditionAway is active while the relay has no connection to the upstream server for an Envoy.
const conditionAway = "upstream-unreachable"

// away identifies the current text of conditionAway. The condition's sentence shows the first error
// of a class, so that errors that differ only in ports or times count as one event.
type away struct {
	address string
	class   string // class of the error; "" while there is a connection
	state   State
}

// classOf returns the class of an error. A server that closes connections causes different errors,
// depending on the state of the handshake; they are in one class.
func classOf(err error) string {
	text := err.Error()
	for _, closed := range []string{"connection reset", "broken pipe", "EOF", "server preface",
		"ended the stream"} {
		if strings.Contains(text, closed) {
			return "closes connections"
		}
	}
	return repeat.ErrorClass(text)
}

// showAway raises or clears conditionAway for the session with the worst state. Callers hold mu.
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
