package discovery

import "time"

// awaitPause is the polling interval for paths that are missing or away: no file event says that a
// file system was mounted.
const awaitPause = time.Second

// awaited returns a channel that receives when missing paths, and those that are away, must be
// checked again; nil if there are none. Only Run may call awaited and appeared.
func (s *Server) awaited() <-chan time.Time {
	if awaits, _ := s.config.store.AwaitsPaths(); awaits {
		return time.After(awaitPause)
	}
	return nil
}

// appeared reports whether a path that was missing or away may exist now.
func (s *Server) appeared() bool {
	_, appeared := s.config.store.AwaitsPaths()
	return appeared
}
