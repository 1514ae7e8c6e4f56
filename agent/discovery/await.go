package discovery

import "time"

// awaitPause is the polling interval for paths that did not exist at the start: no file event says
// that a file system was mounted.
const awaitPause = time.Second

// awaited returns a channel that receives when it is time to look for awaited paths again, nil if
// there are none. Only Run may call awaited, appeared and proceedNow.
func (s *Server) awaited() <-chan time.Time {
	if awaits, _ := s.config.store.Awaits(); awaits {
		return time.After(awaitPause)
	}
	return nil
}

// appeared reports whether an awaited path exists now.
func (s *Server) appeared() bool {
	_, appeared := s.config.store.Awaits()
	return appeared
}

// proceedNow starts to serve without the paths that do not exist.
func (s *Server) proceedNow() {
	s.config.store.Proceed()
	s.push(nil, nil)
}

// Proceed makes the server start without those paths of Options.Await that do not exist. It does
// not block.
func (s *Server) Proceed() {
	select {
	case s.proceed <- struct{}{}:
	default: // the channel has a signal already
	}
}
