package admission

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// crowd acquires n slots of a key, one per second of fake time, and returns them.
func crowd(t *testing.T, p *Pool, key ClientKey, n int, idle bool,
	evicted map[*Slot]bool) (slots []*Slot) {
	t.Helper()
	for range n {
		time.Sleep(time.Second)
		var slot *Slot
		slot, ok := p.Acquire(key, func() { evicted[slot] = true })
		if !ok {
			t.Fatalf("no slot for %v after %d", key, len(slots))
		}
		if idle {
			slot.SetIdle()
		}
		slots = append(slots, slot)
	}
	return slots
}

func TestPool_EvictsLongestIdle(t *testing.T) {
	type group struct {
		uid  uint32
		n    int
		idle bool
	}
	for _, test := range []struct {
		name   string
		limits Limits
		groups []group
		uid    uint32 // user that acquires another slot
		// group is the index in groups of the group that loses its first slot by eviction; -1: the
		// pool has a free slot; -2: no slot can be evicted.
		group int
	}{
		{"room", Limits{4, 2}, []group{{1, 1, true}, {2, 2, true}}, 1, -1},
		{"own share full", Limits{9, 2}, []group{{2, 2, true}, {1, 2, true}}, 1, 1},
		{"own share busy", Limits{9, 2}, []group{{2, 2, true}, {1, 2, false}}, 1, -2},
		{"total full: who has most loses", Limits{5, 3}, []group{{2, 2, true}, {3, 3, true}}, 1, 1},
		{"total full: who has most is busy", Limits{5, 3},
			[]group{{2, 2, true}, {3, 3, false}}, 1, 0},
		{"total full: of equals the oldest loses", Limits{4, 3},
			[]group{{2, 2, true}, {3, 2, true}}, 1, 0},
		{"total full: a larger share takes nothing from a smaller", Limits{3, 3},
			[]group{{2, 1, true}, {1, 2, false}}, 1, -2},
		{"total full: but from itself", Limits{3, 3}, []group{{2, 1, true}, {1, 2, true}}, 1, 1},
		{"all busy", Limits{4, 3}, []group{{2, 2, false}, {3, 2, false}}, 1, -2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, evicted := NewPool(test.limits), map[*Slot]bool{}
				var firsts []*Slot
				for _, g := range test.groups {
					firsts = append(firsts, crowd(t, p, KeyOfUser(g.uid), g.n, g.idle, evicted)[0])
				}
				slot, ok := p.Acquire(KeyOfUser(test.uid), func() {})
				if ok != (test.group != -2) || ok != (slot != nil) {
					t.Fatalf("admitted: %v", ok)
				}
				if want := test.group >= 0; len(evicted) != 0 != want ||
					want && !evicted[firsts[test.group]] {
					t.Errorf("evicted: %d", len(evicted))
				}
				for i, first := range firsts {
					if first.isHeld() != (i != test.group) || first.setBusy() != (i != test.group) {
						t.Errorf("first of group %d: held %v", i, first.isHeld())
					}
				}
				refused := uint64(0)
				if test.group == -2 {
					refused = 1
				}
				if got := p.Stats(); got != (Stats{uint64(len(evicted)), refused}) {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

func TestPool_LeavesNothingBehind(t *testing.T) {
	p := NewPool(Limits{Total: 2, PerKey: 1})
	for uid := range uint32(100) {
		slot, ok := p.Acquire(KeyOfUser(uid), func() {})
		if !ok {
			t.Fatalf("no slot for %d", uid)
		}
		slot.SetIdle()
		slot.Release()
		slot.Release()
		slot.SetIdle()
	}
	if p.size != 0 || p.idle != 0 || len(p.slots) != 0 {
		t.Errorf("%d slots, %d idle, %d keys", p.size, p.idle, len(p.slots))
	}
}

func TestPool_WaitEndsWithAPlaceOrTheContext(t *testing.T) {
	for name, free := range map[string]func(*Slot){"left": (*Slot).Release,
		"idle": (*Slot).SetIdle, "never": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, evicted := NewPool(Limits{Total: 1, PerKey: 1}), false
				first, _ := p.Acquire(KeyOfUser(1), func() { evicted = true })
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if free != nil {
					time.AfterFunc(time.Second, func() { free(first) })
				}
				began := time.Now()
				slot, err := p.WaitAcquire(ctx, KeyOfUser(2), func() {})
				if free == nil {
					if slot != nil || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v, %v", slot, err)
					}
					return
				}
				if err != nil || slot == nil || time.Since(began) != time.Second ||
					evicted != (name == "idle") {
					t.Errorf("%v, %v after %s, evicted %v", slot, err, time.Since(began), evicted)
				}
			})
		})
	}
}
