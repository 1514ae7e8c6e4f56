package store

import "os"

// Awaits reports whether a path of Options.Await does not exist, and whether one of them exists now.
func (s *Store) Awaits() (awaits, appeared bool) {
	for path := range s.awaited {
		if _, problem := s.roots[path]; !problem {
			continue // not read yet
		}
		_, err := os.Stat(path)
		awaits, appeared = true, appeared || err == nil
	}
	return awaits, appeared
}

// Proceed ends the wait for paths: those that do not exist have no objects.
func (s *Store) Proceed() {
	for path := range s.awaited {
		delete(s.awaited, path)
		if _, problem := s.roots[path]; problem {
			s.roots[path] = s.unreadableRoot(path, os.ErrNotExist)
		}
	}
}
