package relay

import (
	"errors"
	"time"

	"outrider.org/outrider/agent/condition"
	xdsresource "outrider.org/outrider/agent/resource"
)

// State is the state of the connection to the upstream server.
type State string

// The states.
const (
	Connecting State = "connecting" // no connection; Envoy has what it had
	Connected  State = "connected"
	Cached     State = "cached" // no connection; Envoy is served from the cache
)

// Status describes the connection to the upstream server.
type Status struct {
	State State
	Since time.Time
	Error string    // why there is no connection; "" if there is one or the first is being made
	Cache time.Time // when the cached configuration was accepted, with Cached
	// Address is the one in use, or the last one; before the first connection all of them, with
	// ", " between.
	Address string
	Unused  []Unused // the other addresses, once one was in use
}

// errConnecting is the error of a connection that is still being made.
var errConnecting = errors.New("no answer yet")

// state is the state of a session.
type state struct {
	connected bool
	err       error     // why not; nil: no attempt has ended yet
	cached    time.Time // not zero: the cache serves
	since     time.Time // without connection
	address   string    // of the upstream server
}

// join adds a session.
func (s *Server) join(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	session.id = s.lastID
	s.sessions[session] = state{since: time.Now()}
	s.show()
}

func (s *Server) leave(session *session) {
	if session.link != nil {
		session.link.cancel()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, session)
	s.left(session)
	s.refusals.Ended(session.id)
	s.show()
}

// worse reports whether a session without connection decides rather than another.
func (s state) worse(than state) bool {
	if than.connected || s.cached.IsZero() != than.cached.IsZero() {
		return than.connected || !s.cached.IsZero()
	}
	return s.since.Before(than.since)
}

// report records the state of a session.
func (s *Server) report(session *session, now state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.sessions[session]
	if before.connected && now.connected {
		return
	}
	now.since, now.address = before.since, session.upstream.name()
	if before.connected {
		now.since = time.Now()
	}
	s.sessions[session] = now
	s.show()
}

// show derives Status and the condition from all sessions. A session that is served from the cache
// decides, else one that is not connected, of these the one for longest; Status is Connected only
// if all are. Callers hold mu.
func (s *Server) show() {
	worst := state{connected: len(s.sessions) > 0}
	for _, one := range s.sessions {
		if !one.connected && one.worse(worst) {
			worst = one
		}
	}
	next := Status{State: Connected, Since: s.shown.Since, Cache: worst.cached}
	switch {
	case !worst.connected && !worst.cached.IsZero():
		next.State = Cached
	case !worst.connected:
		next.State = Connecting
	}
	if worst.err != nil {
		next.Error = worst.err.Error()
	}
	if next.State != s.shown.State {
		next.Since = time.Now()
	}
	s.shown = next
	s.showAway(worst, next)
}

// Status returns the state of the connection.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.shown
	now.Address, now.Unused = s.addressStatus()
	return now
}

// Lost returns the number of upstream streams that ended while their Envoy was connected.
func (s *Server) Lost() uint64 { return s.lost.Load() }

// conditionRefusals is active while an Envoy or a Subscription refuses resources.
const conditionRefusals = "upstream-resources-refused"

const refusedPrefix = "resources of the upstream server are refused: "

// refused reports that Envoy or the agent refuses a response.
func (s *session) refused(typeURL, version, message string) {
	if redact := s.server.options.RedactError; redact != nil {
		message = redact(message)
	}
	s.log.Warn("resources of the upstream server are refused", "type", typeURL, "version", version,
		"error", message)
	s.server.options.Board.Publish(condition.Event{Kind: condition.KindResourcesRefused,
		Sentence: refusedPrefix + message,
		Fields:   map[string]string{"type": typeURL, "error": message}})
	s.server.refusals.Add(s.id, typeURL, nil, xdsresource.TypeName(typeURL)+": "+message)
}
