package main_test

import (
	"testing"

	"outrider.org/outrider/scripts/rig"
)

func TestADrainThatIsWaitedForLeavesNoListener(t *testing.T) {
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	if result := r.Outrider("drain", "--wait"); result.Exit != 0 {
		t.Fatal(result.Err)
	}
	if code, _, err := r.Get("/hello"); err == nil {
		t.Errorf("a connection is taken: %d", code)
	}
}
