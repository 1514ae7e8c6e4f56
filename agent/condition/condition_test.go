package condition

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRaiseKeepsSinceAndOrdersBySeverity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := NewRegistry()
		board.Raise("late", Warning, "a warning")
		time.Sleep(time.Minute)
		board.Raise("bad", Error, "an error")
		board.Raise("late", Warning, "another sentence")
		all := board.Conditions()
		if len(all) != 2 || all[0].Code != "bad" || all[1].Code != "late" {
			t.Fatalf("conditions: %+v", all)
		}
		if age := time.Since(all[1].Since); age != time.Minute {
			t.Errorf("a raised condition changed its age to %v", age)
		}
		board.Clear("late")
		board.Clear("late")
		if events := board.Events(0); len(events) != 4 || events[3].Kind != KindConditionCleared {
			t.Errorf("events: %+v", events)
		}
	})
}

func TestRaiseOfTheSameIsNoEvent(t *testing.T) {
	board := NewRegistry()
	board.Raise("x", Error, "same")
	board.Raise("x", Error, "same")
	if n := len(board.Events(0)); n != 1 {
		t.Errorf("%d events for one condition", n)
	}
}

func TestSlowWatcherLosesEventsAndNobodyWaits(t *testing.T) {
	board := NewRegistry()
	events, cancel := board.Watch(1)
	defer cancel()
	for range maxEvents + 10 {
		board.Publish(Event{Kind: KindDraining})
	}
	if first := <-events; first.Sequence != 1 {
		t.Errorf("first event: %+v", first)
	}
	if all := board.Events(0); len(all) != maxEvents || all[0].Sequence != 11 {
		t.Errorf("%d events kept, first %d", len(all), all[0].Sequence)
	}
}
