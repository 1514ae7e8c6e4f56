package journal

import "slices"

// Limits of the queue in bytes. Only warnings and more severe lines may use the reserve, so that
// less severe ones cannot displace them.
const (
	queueSize    = 1 << 20
	queueReserve = 128 << 10

	priorityWarning = 4
)

// queue holds unsent entries, oldest first. Journal.mu guards it.
type queue struct {
	entries    [][]byte
	bytes      int    // size of the entries, including those removed but not yet sent
	suppressed uint64 // lines dropped since the last report
	// busy means that the method work sends or is about to send, so new entries must be queued.
	busy bool
}

// push appends a copy of an entry, or counts it as suppressed if the queue is full.
func (q *queue) push(entry []byte, level int) {
	q.busy = true
	limit := queueSize
	if level <= priorityWarning {
		limit += queueReserve
	}
	if q.bytes+len(entry) > limit {
		q.suppressed++
		return
	}
	q.entries = append(q.entries, slices.Clone(entry))
	q.bytes += len(entry)
}

// lose counts a suppressed line.
func (q *queue) lose() {
	q.busy = true
	q.suppressed++
}

// take removes and returns all entries and the number of suppressed lines.
func (q *queue) take() (entries [][]byte, suppressed uint64) {
	entries, suppressed = q.entries, q.suppressed
	q.entries, q.suppressed = nil, 0
	q.busy = len(entries) > 0 || suppressed > 0
	return entries, suppressed
}
