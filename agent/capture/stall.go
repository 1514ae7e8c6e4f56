package capture

import (
	"time"

	"outrider.org/outrider/agent/sockdiag"
)

const (
	// stallLimit is the time after which an Envoy counts as hung if it accepts neither the probe
	// nor another connection, and reads from none. Even a slow Envoy does one of these within a
	// second; the rest is a margin for hosts that swap.
	stallLimit = 5 * time.Second
	// suspectAfter is how long a probe waits before other connections are examined, which is
	// expensive. They are compared every progressEvery.
	suspectAfter  = time.Second
	progressEvery = time.Second
	// maxSeen bounds the connections whose progress is recorded (about 3 MB).
	maxSeen = 1 << 16
)

// stall detects an Envoy that is stopped or hangs, by the progress of individual connections: first
// the probe, then others. The length of the accept queue is no criterion: it is never 0 at a busy
// Envoy, and clients can keep it from shrinking.
type stall struct {
	probe    *acceptProbe // nil: Envoy accepted the last probe, or none was sent
	probed   time.Time
	waited   time.Duration // time without progress
	compared time.Time
	seen     map[uint64]seen // the connections at the last comparison, by cookie
}

// seen is the state of a connection that has made no progress since it was recorded.
type seen struct {
	accepted bool
	unread   uint32
}

// check reports whether Envoy makes no progress. passed is the time since the last call; queueWaits
// reports that connections wait to be accepted.
func (s *stall) check(now time.Time, passed time.Duration, families AddressFamilies, envoy uint32,
	queueWaits bool) bool {
	if s.probe != nil {
		switch s.probe.state(queueWaits) {
		case probeAccepted:
			s.reset()
		case probeLost:
			s.drop()
		case probeWaits:
			s.waited += passed
			if s.waited >= suspectAfter && now.Sub(s.compared) >= progressEvery {
				s.compared = now
				if s.progress(envoy) {
					s.waited = 0
				}
			}
		}
	}
	if s.probe == nil && now.Sub(s.probed) >= checkEvery {
		s.probed = now
		s.probe, _ = newProbe(families, OutboundPort) // may fail while Envoy exits
	}
	return s.waited >= stallLimit
}

// progress reports whether Envoy has accepted or made a connection, read from one, or closed one
// with unread data. A connection that ends before it is accepted is no progress.
func (s *stall) progress(envoy uint32) (progress bool) {
	next, first := map[uint64]seen{}, len(s.seen) == 0 || len(s.seen) == maxSeen
	err := sockdiag.EachSocket(sockdiag.TCP, func(c sockdiag.Socket) {
		port, accepted := c.Address.Port(), c.Inode != 0
		if accepted && c.UID != envoy || !accepted && port != OutboundPort && port != InboundPort {
			return
		}
		was, known := s.seen[c.Cookie]
		switch {
		case known:
			progress = progress || accepted && !was.accepted || c.ReceiveQueue < was.unread
			delete(s.seen, c.Cookie)
		case accepted:
			progress = progress || !first
		}
		if len(next) < maxSeen {
			next[c.Cookie] = seen{accepted, c.ReceiveQueue}
		}
	}, sockdiag.Established, sockdiag.CloseWait)
	for _, ended := range s.seen {
		progress = progress || ended.unread > 0 && ended.accepted
	}
	s.seen = next
	return progress || err != nil
}

// reset discards the probe and the observations made while it waited for an answer.
func (s *stall) reset() {
	s.drop()
	s.waited, s.seen = 0, nil
}

func (s *stall) drop() {
	if s.probe != nil {
		s.probe.close()
		s.probe = nil
	}
}
