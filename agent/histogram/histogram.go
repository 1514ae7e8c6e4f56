// Package histogram counts durations for the metrics of parts.
package histogram

import (
	"slices"
	"sync"
	"time"
)

// Histogram counts durations by upper bounds. It is safe for concurrent use.
type Histogram struct {
	bounds []time.Duration

	mu     sync.Mutex
	counts []uint64
	sum    time.Duration
	count  uint64
}

// Counts are what a histogram has counted.
type Counts struct {
	Bounds []time.Duration // upper bounds, ascending
	Counts []uint64        // one per bound, and one for what is above the last; not cumulative
	Sum    time.Duration
	Count  uint64
}

// New returns an empty histogram with upper bounds, ascending.
func New(bounds ...time.Duration) *Histogram {
	return &Histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	at, _ := slices.BinarySearch(h.bounds, d)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[at]++
	h.sum += d
	h.count++
}

// Read returns what was counted so far.
func (h *Histogram) Read() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Counts{Bounds: h.bounds, Counts: slices.Clone(h.counts), Sum: h.sum, Count: h.count}
}
