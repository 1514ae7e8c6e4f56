package rates

import (
	"testing"
	"time"
)

func TestLimiter_BoundEachIdentity(t *testing.T) {
	var l Limiter
	now := time.Now()
	count := func(identity string, at time.Time) (allowed int) {
		for range 3 * RequestBurstPerIdentity {
			if l.Allow(identity, at) {
				allowed++
			}
		}
		return allowed
	}
	for _, identity := range []string{"a", "b"} {
		if got := count(identity, now); got != RequestBurstPerIdentity {
			t.Errorf("%s: %d at once", identity, got)
		}
	}
	if got := count("a", now.Add(time.Second)); got != RequestsPerSecondPerIdentity {
		t.Errorf("%d after a second", got)
	}
	for i := range 2 * maxIdentities {
		l.Allow(string(rune('c'+i)), now)
	}
	if len(l.next) > maxIdentities+1 {
		t.Errorf("%d identities", len(l.next))
	}
	l.Allow("new", now.Add(time.Hour))
	if len(l.next) != 1 {
		t.Errorf("%d identities after an hour", len(l.next))
	}
}
