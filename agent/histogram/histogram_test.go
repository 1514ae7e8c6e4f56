package histogram_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/histogram"
)

func TestHistogram(t *testing.T) {
	h := histogram.New(time.Millisecond, time.Second)
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1,
		time.Second, time.Hour} {
		h.Observe(d)
	}
	want := histogram.Counts{Bounds: []time.Duration{time.Millisecond, time.Second},
		Counts: []uint64{2, 2, 1},
		Sum:    time.Hour + time.Second + 2*time.Millisecond + 1, Count: 5}
	if diff := cmp.Diff(want, h.Counts()); diff != "" {
		t.Error(diff)
	}
}
