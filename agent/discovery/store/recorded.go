package store

import (
	"maps"
	"math"

	"outrider.org/outrider/agent/discovery/object"
)

// PolicyCountsByFile returns the number of policies of each file that has any, for
// Options.PolicyCountsByFile of the next store. For a broken file, the number is at least the
// previous one. The result is nil without Options.AwaitPaths.
func (s *Store) PolicyCountsByFile() map[string]int {
	if !s.options.AwaitPaths {
		return nil
	}
	return maps.Clone(s.options.PolicyCountsByFile)
}

// guard records the number of a file's policies. If the file is broken and fewer policies are known
// than before, it adds a denial of everything.
func (s *Store) guard(path string, f *file) {
	if f == nil || f.input {
		return
	}
	had := s.options.PolicyCountsByFile[path]
	if s.options.PolicyLocationsIncomplete && s.files[path] == nil {
		had = math.MaxInt32
	}
	known, denied := map[object.Key]bool{}, 0
	for _, o := range f.objects {
		if o.Kind.CanRestrictAccess() && !known[o.Key] {
			known[o.Key] = true
			if isDenial(o) {
				denied++
			}
		}
	}
	has := len(known)
	if f.broken {
		if has < had {
			f.denyAll(path)
		}
		// the denials of an unreadable file do not count as policies, because they end once it is
		// readable
		if f.unreadable {
			has -= denied
		}
		has = max(had, has)
	}
	if s.options.PolicyCountsByFile[path] = has; has == 0 {
		delete(s.options.PolicyCountsByFile, path)
	}
}
