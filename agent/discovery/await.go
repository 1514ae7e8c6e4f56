package discovery

import "time"

// awaitPause is the polling interval for paths that do not exist or whose file system seems to be
// unmounted: a mount causes no file event.
const awaitPause = time.Second

// awaited returns a channel that receives when missing or unmounted paths must be checked again;
// nil if there are none. Only Run may call awaited and appeared.
func (s *Server) awaited() <-chan time.Time {
	if awaits, _ := s.config.store.AwaitsMissingPaths(); awaits {
		return time.After(awaitPause)
	}
	return nil
}

// appeared reports whether a path that was missing or unmounted may exist now.
func (s *Server) appeared() bool {
	_, appeared := s.config.store.AwaitsMissingPaths()
	return appeared
}
