package keeper

import "sync"

// backlog queues the log lines of all processes, oldest first, until an agent receives them. It is
// bounded: when it is full it drops and counts the oldest lines, so that reading a log pipe never
// waits.
type backlog struct {
	mu      sync.Mutex
	entries []entry
	bytes   int
	dropped map[origin]uint64 // number of dropped lines that take has not yet reported
	waiting chan struct{}     // holds a token while the queue may be non-empty
}

// origin is the process that wrote a line.
type origin struct {
	ID    string `json:"id"`
	Epoch int    `json:"epoch"`
}

type entry struct {
	origin
	line string
}

func newBacklog() *backlog {
	return &backlog{dropped: map[origin]uint64{}, waiting: make(chan struct{}, 1)}
}

func (b *backlog) add(from origin, line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.append(entry{from, line})
}

func (b *backlog) append(e entry) {
	b.entries = append(b.entries, e)
	b.bytes += len(e.line)
	for len(b.entries) > MaxQueuedLines || b.bytes > MaxQueuedBytes {
		b.dropped[b.pop().origin]++
	}
	b.wake()
}

// pop removes the oldest entry.
func (b *backlog) pop() entry {
	oldest := b.entries[0]
	b.entries[0] = entry{}
	b.bytes -= len(oldest.line)
	if b.entries = b.entries[1:]; len(b.entries) == 0 {
		b.entries = nil // release the memory after a flood
	}
	return oldest
}

func (b *backlog) wake() {
	select {
	case b.waiting <- struct{}{}:
	default:
	}
}

// Bounds of one batch, far below rpc.MaxMessageBytes even when JSON escapes every byte.
const (
	batchLines = 256
	batchBytes = 64 << 10
)

// take removes the next batch, grouped by process. It leaves a token in waiting if lines remain.
func (b *backlog) take() []LogLines {
	b.mu.Lock()
	defer b.mu.Unlock()
	var logs []LogLines
	of := func(from origin) *LogLines {
		for i := range logs {
			if logs[i].ID == from.ID {
				return &logs[i]
			}
		}
		logs = append(logs, LogLines{ID: from.ID, EpochNumber: from.Epoch, Dropped: b.dropped[from]})
		delete(b.dropped, from)
		return &logs[len(logs)-1]
	}
	for lines, size := 0, 0; lines < batchLines && size < batchBytes &&
		len(b.entries) > 0; lines++ {
		oldest := b.pop()
		log := of(oldest.origin)
		log.Lines = append(log.Lines, oldest.line)
		size += len(oldest.line)
	}
	if len(b.entries) > 0 {
		b.wake()
		return logs
	}
	for from := range b.dropped { // processes of which only dropped lines are left to report
		of(from)
	}
	return logs
}

// putBack inserts lines that take has removed, and that could not be sent, at the head of the
// queue.
func (b *backlog) putBack(logs []LogLines) {
	b.mu.Lock()
	defer b.mu.Unlock()
	later := b.entries
	b.entries, b.bytes = nil, 0
	b.put(logs)
	for _, e := range later {
		b.append(e)
	}
}

// snapshot returns all lines without removing them, for the state that the keeper saves before it
// re-executes itself. restore adds the lines of a snapshot.
func (b *backlog) snapshot() []LogLines {
	b.mu.Lock()
	defer b.mu.Unlock()
	var logs []LogLines
	for from, count := range b.dropped {
		logs = append(logs, LogLines{ID: from.ID, EpochNumber: from.Epoch, Dropped: count})
	}
	for _, e := range b.entries {
		if last := len(logs) - 1; last < 0 || logs[last].ID != e.ID {
			logs = append(logs, LogLines{ID: e.ID, EpochNumber: e.Epoch})
		}
		logs[len(logs)-1].Lines = append(logs[len(logs)-1].Lines, e.line)
	}
	return logs
}

func (b *backlog) restore(logs []LogLines) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(logs)
}

func (b *backlog) put(logs []LogLines) {
	for _, log := range logs {
		from := origin{log.ID, log.EpochNumber}
		for _, line := range log.Lines {
			b.append(entry{from, line})
		}
		if log.Dropped > 0 {
			b.dropped[from] += log.Dropped
			b.wake()
		}
	}
}
