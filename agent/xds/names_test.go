package xds

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// manyNames returns n sorted names.
func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("outbound|80||service-%04d", i)
	}
	return names
}

func TestNames_StreamsShareEqualSets(t *testing.T) {
	sets := newNameSets()
	clients := map[bool]*table{}
	for _, delta := range []bool{true, false} {
		p := newTable(t, delta)
		p.session.sets, p.session.limits.bytes = sets, 1<<20
		clients[delta] = p
		p.publish(made(eds, "outbound|80||service-0001=1"))
		names := manyNames(100)
		slices.Reverse(names)
		p.ask(&request{typeURL: eds, subscribe: slices.Clone(names[:50]),
			names: slices.Clone(names[:50])})
		p.ask(&request{typeURL: eds, subscribe: slices.Clone(names), names: names})
	}
	delta, state := clients[true].session, clients[false].session
	if delta.watches[eds].names != state.watches[eds].names {
		t.Error("two streams with the same names have sets of their own")
	}
	clients[true].ask(&request{typeURL: eds, unsubscribe: []string{"outbound|80||service-0003"}})
	if delta.watches[eds].wants("outbound|80||service-0003") ||
		!delta.watches[eds].wants("outbound|80||service-0004") ||
		!state.watches[eds].wants("outbound|80||service-0003") {
		t.Error("one stream's change is not its own")
	}
	for _, s := range []*session{delta, state} {
		want := 0
		for _, name := range s.watches[eds].names.sorted {
			want += len(name)
		}
		if s.nameBytes != want {
			t.Errorf("%d bytes are counted, names have %d", s.nameBytes, want)
		}
	}
}

func TestNames_UnusedSetsAreForgotten(t *testing.T) {
	sets := newNameSets()
	func() {
		set := sets.share(&nameSet{manyNames(1000)})
		if other := sets.share(&nameSet{manyNames(1000)}); other != set {
			t.Fatal("not shared")
		}
		runtime.KeepAlive(set)
	}()
	eventually(t, "the set is collected", func() bool {
		runtime.GC()
		sets.mu.Lock()
		defer sets.mu.Unlock()
		return len(sets.byHash) == 0
	})
}
