package discovery

import "time"

// awaitPause is the polling interval for paths that did not exist at the start: no event says that
// a file system was mounted.
const awaitPause = time.Second

// awaited returns a channel that receives when awaited paths are due to be looked at, nil if there
// are none. Only Run may call it and the next two functions.
func (s *Server) awaited() <-chan time.Time {
	if awaits, _ := s.config.store.Awaits(); awaits {
		return time.After(awaitPause)
	}
	return nil
}

// appeared reports whether an awaited path exists.
func (s *Server) appeared() bool {
	_, appeared := s.config.store.Awaits()
	return appeared
}

// proceedNow serves without the paths that do not exist.
func (s *Server) proceedNow() {
	s.config.store.Proceed()
	s.push(nil, nil)
}

// Proceed serves without paths of Options.Await that do not exist. It does not block.
func (s *Server) Proceed() {
	select {
	case s.proceed <- struct{}{}:
	default: // one is pending
	}
}
