package xds

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// nameSet is a set of resource names. It is immutable, so that streams can share equal sets.
type nameSet struct{ sorted []string }

func (n *nameSet) has(name string) bool {
	_, ok := slices.BinarySearch(n.sorted, name)
	return ok
}

// with returns the union of the set and additional names. They must be sorted, and none of them may
// be in the set.
func (n *nameSet) with(more []string) *nameSet {
	all := slices.Concat(n.sorted, more)
	slices.Sort(all)
	return &nameSet{all}
}

// without returns the set without the given names, which must be sorted.
func (n *nameSet) without(names []string) *nameSet {
	rest := make([]string, 0, len(n.sorted))
	for _, name := range n.sorted {
		if _, gone := slices.BinarySearch(names, name); !gone {
			rest = append(rest, name)
		}
	}
	return &nameSet{rest}
}

// minShared is the minimum size of a set that streams share. Sharing smaller sets would save no
// memory.
const minShared = 32

// nameSets has the sets that streams use, by hash. The clients of a fleet subscribe to the same
// names, so their streams can share one set.
type nameSets struct {
	seed maphash.Seed

	mu     sync.Mutex
	byHash map[uint64]weak.Pointer[nameSet]
}

func newNameSets() *nameSets {
	return &nameSets{seed: maphash.MakeSeed(), byHash: map[uint64]weak.Pointer[nameSet]{}}
}

// share returns the set with the same names that other streams already use, or the given set if
// there is none.
func (s *nameSets) share(set *nameSet) *nameSet {
	if len(set.sorted) < minShared {
		return set
	}
	var hash maphash.Hash
	hash.SetSeed(s.seed)
	for _, name := range set.sorted {
		_, _ = hash.WriteString(name)
		_ = hash.WriteByte(0)
	}
	sum := hash.Sum64()
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byHash[sum].Value(); known != nil {
		if slices.Equal(known.sorted, set.sorted) {
			return known
		}
		return set
	}
	s.byHash[sum] = weak.Make(set)
	runtime.AddCleanup(set, s.collected, sum)
	return set
}

// collected removes the entry of a set that the garbage collector has freed.
func (s *nameSets) collected(sum uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHash[sum].Value() == nil {
		delete(s.byHash, sum)
	}
}
