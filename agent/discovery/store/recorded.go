package store

import (
	"maps"
	"math"

	"outrider.org/outrider/agent/discovery/object"
)

// Policies returns the number of policies of each file that has any, for Options.Policies of the
// next store. For a broken file it is the number before, if that was larger. The result is nil
// without Options.Await.
func (s *Store) Policies() map[string]int {
	if !s.options.Await {
		return nil
	}
	return maps.Clone(s.options.Policies)
}

// guard adds a denial of everything to a broken file of which fewer policies are known than it had,
// and records the number of its policies.
func (s *Store) guard(path string, f *file) {
	if f == nil || f.input {
		return
	}
	had := s.options.Policies[path]
	if s.options.FoldersLost && s.files[path] == nil {
		had = math.MaxInt32
	}
	known, denied := map[object.Key]bool{}, 0
	for _, o := range f.objects {
		if o.Kind.Restricts() && !known[o.Key] {
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
		if f.unreadable { // its denials end once it can be read again
			has -= denied
		}
		has = max(had, has)
	}
	if s.options.Policies[path] = has; has == 0 {
		delete(s.options.Policies, path)
	}
}
