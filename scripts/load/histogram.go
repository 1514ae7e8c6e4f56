package load

import (
	"math/bits"
	"time"
)

// subBuckets is the number of buckets per power of two: values are precise to 1/64.
const subBuckets = 64

// histogram counts durations in exponential buckets, like an HDR histogram, from a microsecond. It
// stores the exact maximum.
type histogram struct {
	buckets []uint32
	count   int
	largest time.Duration
}

func (h *histogram) add(d time.Duration) {
	i := bucket(d)
	for len(h.buckets) <= i {
		h.buckets = append(h.buckets, 0)
	}
	h.buckets[i]++
	h.count++
	h.largest = max(h.largest, d)
}

// quantile returns the smallest duration that a share q of all durations do not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int(q*float64(h.count) + 0.5)
	for i, n := range h.buckets {
		rank -= int(n)
		if rank <= 0 && n > 0 {
			return min(upper(i), h.largest)
		}
	}
	return h.largest
}

// bucket returns the number of a duration's bucket: one per 1 µs up to 128 µs, then 64 per power of
// two.
func bucket(d time.Duration) int {
	micros := uint64(max(0, d.Microseconds()))
	shift := max(0, bits.Len64(micros)-7)
	return shift*subBuckets + int(micros>>shift)
}

// upper returns the upper bound of a bucket.
func upper(i int) time.Duration {
	if i < 2*subBuckets {
		return time.Duration(i) * time.Microsecond
	}
	shift := i/subBuckets - 1
	return time.Duration((i-shift*subBuckets+1)<<shift-1) * time.Microsecond
}
