package journal

import "slices"

// The bounds of what waits for the journal, in bytes. Warnings and worse may use the reserve: they are not lost to a flood of
// what matters less.
const (
	queueSize    = 1 << 20
	queueReserve = 128 << 10

	priorityWarning = 4
)

// queue is what waits, oldest first. Its lock is the journal's.
type queue struct {
	entries    [][]byte
	bytes      int    // of the entries, and of those taken that are not sent yet
	suppressed uint64 // lines that were lost since the last time this was told
	busy       bool   // somebody sends what waits, or is about to: everything else waits behind it
}

// push takes a copy of an entry, or counts it.
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

// lose counts a line.
func (q *queue) lose() {
	q.busy = true
	q.suppressed++
}

// take removes and returns all that waits, and how many lines were suppressed after it.
func (q *queue) take() (entries [][]byte, suppressed uint64) {
	entries, suppressed = q.entries, q.suppressed
	q.entries, q.suppressed = nil, 0
	q.busy = len(entries) > 0 || suppressed > 0
	return entries, suppressed
}
