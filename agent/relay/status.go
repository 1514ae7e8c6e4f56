package relay

import (
	"errors"
	"time"

	"outrider.org/outrider/agent/condition"
	xdsresource "outrider.org/outrider/agent/resource"
)

// ConnectionState is the state of the connection to the upstream server.
type ConnectionState string

// States of the connection to the upstream server.
const (
	Connecting ConnectionState = "connecting" // no connection; Envoy continues with its resources
	Connected  ConnectionState = "connected"
	Cached     ConnectionState = "cached" // no connection; Envoy receives cached resources
)

// Status describes the connection to the upstream server, for people.
type Status struct {
	State ConnectionState
	Since time.Time
	// why there is no connection; "" if there is one, or while the first attempt is running
	Error           string
	CacheAcceptedAt time.Time // when Envoy accepted the cached resources; only in state Cached
	// Address is the address in use; without a connection, that of the last connection. Before the
	// first connection it lists all addresses, separated by ", ".
	Address         string
	UnusedAddresses []UnusedAddress // addresses that are not in use; empty until the first connection
}

// errConnecting is the error of a session whose first connection attempt is still running.
var errConnecting = errors.New("the upstream server has not answered yet")

// state is the connection state of one session.
type state struct {
	connected bool
	err       error // why the session is not connected; nil: the first attempt is still running
	// when the cached resources were accepted; zero unless the session is served from the cache
	cached  time.Time
	since   time.Time // when the connection was lost, or when the session began
	address string    // address of the upstream server
}

// join adds a session to the sessions of the server.
func (s *Server) join(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	session.id = s.lastID
	s.sessions[session] = state{since: time.Now()}
	s.updateStatus()
}

func (s *Server) leave(session *session) {
	if session.link != nil {
		session.link.cancel()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, session)
	s.left(session)
	s.refusals.RemoveStream(session.id)
	s.updateStatus()
}

// worse reports whether a session's state is worse than another's. A state in which the cache
// serves is worse than one without a connection; of equal ones, the one that is disconnected for
// longer is worse.
func (s state) worse(than state) bool {
	if than.connected || s.cached.IsZero() != than.cached.IsZero() {
		return than.connected || !s.cached.IsZero()
	}
	return s.since.Before(than.since)
}

// report records the state of a session and updates the server's status.
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
	s.updateStatus()
}

// updateStatus derives Status and conditionAway from the session with the worst state. The caller
// must hold mu.
func (s *Server) updateStatus() {
	worst := state{connected: len(s.sessions) > 0}
	for _, one := range s.sessions {
		if !one.connected && one.worse(worst) {
			worst = one
		}
	}
	next := Status{State: Connected, Since: s.shown.Since, CacheAcceptedAt: worst.cached}
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

// Status returns the state of the connection to the upstream server.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.shown
	now.Address, now.UnusedAddresses = s.addressStatus()
	return now
}

// LostStreams returns the number of upstream streams that ended while their Envoy was connected.
func (s *Server) LostStreams() uint64 { return s.lost.Load() }

// conditionRefusals is active while an Envoy or a Subscription refuses resources of the upstream
// server.
const conditionRefusals = "upstream-resources-refused"

const refusedPrefix = "resources of the upstream server are refused: "

// refused reports that Envoy or a Subscription refuses a response.
func (s *session) refused(typeURL, version, message string) {
	if redact := s.server.options.RedactError; redact != nil {
		message = redact(message)
	}
	s.log.Warn("resources of upstream server refused (NACK)", "type", typeURL, "version", version,
		"error", message)
	s.server.options.Conditions.Publish(condition.Event{Kind: condition.KindResourcesRefused,
		Sentence: refusedPrefix + message,
		Fields:   map[string]string{"type": typeURL, "error": message}})
	s.server.refusals.Add(s.id, typeURL, nil, xdsresource.TypeName(typeURL)+": "+message)
}
