package bus

import (
	"fmt"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/condition"
)

// TestConditionsThatRepeatAreFewSignals checks that a condition whose text changes constantly is
// signalled at most three times a minute, while clients that read it get the current text.
func TestConditionsThatRepeatAreFewSignals(t *testing.T) {
	d, a := running(t)
	signals := serveChanges(t, d)
	manager := d.connect().Object(wellKnownName, managerPath)
	const failures = 10_000
	read := func() string {
		value, err := manager.GetProperty(managerInterface + ".Conditions")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(value.Value())
	}
	kinds := []string{"refused", "too late", "reset"}
	for i := range failures {
		kind := kinds[i%len(kinds)]
		a.board.Raise("dns-upstream-failed", condition.Warning, fmt.Sprintf("from port %d: %s", i, kind))
		if i%500 == 0 {
			read()
		}
		if i%1000 == 999 {
			a.board.Clear("dns-upstream-failed")
		}
	}
	a.board.Raise("dns-upstream-failed", condition.Warning, "the last one")
	eventually(t, "clients read the current text", func() bool {
		return strings.Contains(read(), "the last one")
	})
	a.board.Publish(condition.Event{Kind: condition.KindDraining})
	told := 0
	for {
		s := await(t, signals, "a signal")
		if s.Name == managerInterface+".Draining" {
			break
		}
		if s.Name == propertiesChanged {
			if _, ok := s.Body[1].(map[string]dbus.Variant)[conditionsProperty]; ok {
				told++
			}
		}
	}
	if told == 0 || told > 3 {
		t.Errorf("%d signals for %d failures", told, failures)
	}
}
