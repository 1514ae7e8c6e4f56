package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestExponential(t *testing.T) {
	for _, test := range []struct {
		shortest, longest time.Duration
		failures          int
		want              time.Duration
	}{
		{time.Second, time.Minute, -1, 0},
		{time.Second, time.Minute, 0, 0},
		{time.Second, time.Minute, 1, time.Second},
		{time.Second, time.Minute, 2, 2 * time.Second},
		{time.Second, time.Minute, 6, 32 * time.Second},
		{time.Second, time.Minute, 7, time.Minute},
		{time.Second, time.Minute, 1 << 40, time.Minute},
		{time.Second, 1<<63 - 1, 30, 1 << 29 * time.Second},
		{time.Minute, time.Minute, 3, time.Minute},
		{time.Hour, time.Minute, 1, time.Minute},
	} {
		if got := Exponential(test.shortest, test.longest, test.failures); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began := Backoff{Min: time.Second, Max: 5 * time.Second}, time.Now()
		for _, want := range []time.Duration{1, 3, 7, 12, 17} {
			if err := b.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(began); got != want*time.Second {
				t.Errorf("after %v, want %v s", got, want)
			}
		}
		b.Reset()
		if got := b.Next(); got != time.Second {
			t.Errorf("%v after a success", got)
		}
	})
}

func TestBackoff_Jitter(t *testing.T) {
	b := Backoff{Min: time.Second, Max: time.Second, Jitter: 0.2}
	seen := map[time.Duration]bool{}
	for range 100 {
		pause := b.Next()
		if seen[pause] = true; pause < 800*time.Millisecond || pause > 1200*time.Millisecond {
			t.Errorf("%v", pause)
		}
	}
	if len(seen) < 50 {
		t.Errorf("%d different pauses", len(seen))
	}
}

func TestSleep_EndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := Sleep(ctx, time.Hour)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
