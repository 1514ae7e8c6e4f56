package relay

import (
	"fmt"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/repeat"
)

// conditionAway is active while the relay has no connection to the upstream server for the session
// of an Envoy.
const conditionAway = "upstream-unreachable"

// away identifies the text of conditionAway. The text is changed only if the class of the error
// changes, not if errors of a class differ in ports or times.
type away struct {
	address string
	class   string // class of the error; "" while there is a connection
	state   ConnectionState
}

// classOf returns the class of an error. Depending on the state of the handshake, a connection that
// the server closes causes different errors; they are all in one class.
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

// showAway raises or clears conditionAway for the session in the worst state. The caller must hold
// mu.
func (s *Server) showAway(worst state, next Status) {
	if worst.err == nil {
		s.away = away{}
		s.options.Conditions.Clear(conditionAway)
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
			next.CacheAcceptedAt.Format(time.RFC3339)
	}
	s.options.Conditions.Raise(conditionAway, condition.Error, fmt.Sprintf(
		"no connection to the upstream server since %s: %s; %s",
		worst.since.Format(time.RFC3339), next.Error, consequence))
}
