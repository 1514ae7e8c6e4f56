package discovery

import (
	"time"

	"outrider.org/outrider/agent/discovery/object"
)

// awaitPause is the polling interval for paths that did not exist at the start: no event says that
// a file system was mounted.
const awaitPause = time.Second

// awaited returns a channel that receives when awaited paths are due to be looked at, nil if there
// are none. Only Run may call it and the next two functions.
func (s *Server) awaited() <-chan time.Time {
	for _, r := range s.filled() {
		if awaits, _ := r.store.Awaits(); awaits {
			return time.After(awaitPause)
		}
	}
	return nil
}

// appeared reports whether an awaited path exists.
func (s *Server) appeared() bool {
	for _, r := range s.filled() {
		if _, appeared := r.store.Awaits(); appeared {
			return true
		}
	}
	return false
}

// proceedNow serves without the paths that do not exist.
func (s *Server) proceedNow() {
	changes := map[*realm][]object.Change{}
	for _, r := range s.filled() {
		r.store.Proceed()
		changes[r] = nil
	}
	s.push(changes, nil)
}

// Proceed serves without paths of Options.Await that do not exist. It does not block.
func (s *Server) Proceed() {
	select {
	case s.proceed <- struct{}{}:
	default: // one is pending
	}
}
