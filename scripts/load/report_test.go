package load

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var h histogram
	var all []time.Duration
	for range 20000 {
		d := time.Duration(random.ExpFloat64()*float64(3*time.Millisecond)) + time.Microsecond
		if random.IntN(1000) == 0 {
			d += time.Duration(random.IntN(5000)) * time.Millisecond
		}
		all = append(all, d)
		h.add(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999} {
		want := all[int(q*float64(len(all))+0.5)-1]
		if got := h.quantile(q); got < want-time.Microsecond || got > want+want/subBuckets+
			time.Microsecond {
			t.Errorf("quantile %v: %v, exactly %v", q, got, want)
		}
	}
	if h.quantile(1) != all[len(all)-1] {
		t.Errorf("maximum: %v, exactly %v", h.quantile(1), all[len(all)-1])
	}
	for i := range 40 * subBuckets {
		if b := bucket(upper(i)); b != i {
			t.Fatalf("the largest of bucket %d, %v, falls into %d", i, upper(i), b)
		}
	}
	var empty histogram
	if empty.quantile(0.5) != 0 {
		t.Error("an empty histogram has a median")
	}
}

func TestBlip(t *testing.T) {
	r := newRecorder(time.Now())
	r.class(ClassKeepAlive)
	// the connections are made in second 0
	for i, millis := range []int{90, 3, 4, 20, 7, 5, 30, 2} {
		intended := r.start.Add(time.Duration(i) * time.Second)
		r.add(ClassKeepAlive, intended, intended.Add(time.Duration(millis)*time.Millisecond),
			OutcomeOK, 0)
	}
	r.mark("switch", r.start.Add(2500*time.Millisecond))
	r.mark("other", r.start.Add(6*time.Second))
	during, quiet := r.report(r.start.Add(8 * time.Second)).CompareMarkLatency("switch")
	if during != 20*time.Millisecond || quiet != 7*time.Millisecond {
		t.Errorf("during %v, quiet %v", during, quiet)
	}
}
