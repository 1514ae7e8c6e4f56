// Package histogram counts durations in buckets for metrics.
package histogram

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Histogram counts durations in buckets. It is safe for concurrent use.
type Histogram struct {
	bounds []time.Duration

	mu     sync.Mutex
	counts []uint64
	sum    time.Duration
	count  uint64
}

// Counts is a snapshot of a Histogram.
type Counts struct {
	Bounds []time.Duration // upper bounds, ascending
	Counts []uint64        // one per bound, plus one for larger durations; not cumulative
	Sum    time.Duration
	Count  uint64
}

// New returns an empty histogram with upper bounds in ascending order.
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

// Counts returns the current counts.
func (h *Histogram) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Counts{Bounds: h.bounds, Counts: slices.Clone(h.counts), Sum: h.sum, Count: h.count}
}

// Metric returns the counts as a metric in seconds.
func (c Counts) Metric(desc *prometheus.Desc) prometheus.Metric {
	buckets := make(map[float64]uint64, len(c.Bounds))
	var below uint64
	for i, bound := range c.Bounds {
		below += c.Counts[i]
		buckets[bound.Seconds()] = below
	}
	return prometheus.MustNewConstHistogram(desc, c.Count, c.Sum.Seconds(), buckets)
}
