package watch

import (
	"maps"
	"slices"
)

// read looks at what n holds.
func (t *tree) read(n *node) {
	switch {
	case n.listed != "" && n.parent == nil:
		n.now, n.stamp = content{kind: directory}, stamp{}
	case n.listed != "", n.real == "", n.gone:
		n.now, n.stamp = content{}, stamp{}
	default:
		t.reads++
		n.now, n.stamp = readContent(n.real, n.now, n.stamp, t.forOthers(n))
	}
}

// settle reads what may have changed.
func (t *tree) settle() {
	for n := range t.dirty {
		t.read(n)
		if n.now != n.told {
			t.pending[n] = struct{}{}
		} else {
			delete(t.pending, n)
			t.prune(n)
		}
	}
	clear(t.dirty)
	t.sweep()
}

// prune drops an entry that has gone, and whose end was told.
func (t *tree) prune(n *node) {
	for n.parent != nil && n.gone && n.now == n.told && len(n.children) == 0 {
		delete(n.parent.children, n.path)
		t.drop(n)
		n = n.parent
	}
}

// batch is a set of changes to be told.
type batch struct {
	names []string
	nodes map[*node]content
}

func (t *tree) batch() batch {
	result := batch{nodes: make(map[*node]content, len(t.pending))}
	names := map[string]struct{}{}
	for n := range t.pending {
		result.nodes[n] = n.now
		names[n.name] = struct{}{}
	}
	result.names = slices.Sorted(maps.Keys(names))
	return result
}

// delivered notes that a batch was told.
func (t *tree) delivered(told batch) {
	for n, state := range told.nodes {
		n.told = state
		if n.now == n.told {
			delete(t.pending, n)
			t.prune(n)
		}
	}
	t.sweep()
}
