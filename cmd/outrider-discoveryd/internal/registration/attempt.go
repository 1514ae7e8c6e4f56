package registration

import (
	"time"

	"outrider.org/outrider/agent/condition"
)

// attempt describes the failed writes of one version of an entry.
type attempt struct {
	version  string // version of the entry that the write should have replaced
	err      error  // error of the last write; only a failure of the store is retried
	failures int
	next     time.Time // earliest time of the next attempt
}

// failed records that the write of an entry failed.
func (s *Server) failed(e *WorkloadEntry, err error, now time.Time) {
	last := s.tried[e.Key]
	if last.version != e.Version {
		last = attempt{version: e.Version}
	}
	last.failures++
	last.err, last.next = err, now.Add(retryPause(last.failures))
	s.tried[e.Key] = last
}

// mayWrite reports whether a write of the entry's version has not failed yet, or may be retried
// now.
func (s *Server) mayWrite(e *WorkloadEntry, now time.Time) bool {
	last, ok := s.tried[e.Key]
	return !ok || last.version != e.Version || unavailable(last.err) && !now.Before(last.next)
}

// failure returns the error of a write that failed because the store cannot be used; nil if there
// is none.
func (s *Server) failure() error {
	for _, last := range s.tried {
		if unavailable(last.err) {
			return last.err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hosts {
		for _, one := range h.sessions {
			if one.err != nil {
				return one.err
			}
		}
	}
	return nil
}

// reportStore raises conditionStore after the store has failed for reportDown. It clears the
// condition when err is nil.
func (s *Server) reportStore(err error, now time.Time) {
	if err == nil {
		s.down = time.Time{}
		s.counters.failing.Store(false)
		s.options.Conditions.Clear(conditionStore)
		return
	}
	if s.down.IsZero() {
		s.down = now
	}
	if now.Sub(s.down) >= reportDown {
		s.counters.failing.Store(true)
		s.options.Conditions.Raise(conditionStore, condition.Error,
			"workloads are not registered, and "+
				"those that are gone stay in the mesh: the store cannot be used: "+err.Error())
	}
}
