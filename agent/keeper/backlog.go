package keeper

import "sync"

// backlog holds the lines that no agent has taken yet, of all processes, oldest first. It is the
// only queue between the log pipes and an agent: when nobody takes, or too slowly, the oldest lines
// go and are counted, so that reading a pipe never waits.
type backlog struct {
	mu      sync.Mutex
	entries []entry
	bytes   int
	dropped map[origin]uint64 // since last told
	waiting chan struct{}     // holds a token while there may be something to take
}

// origin is who said a line.
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
	for len(b.entries) > MaxKeptLines || b.bytes > MaxKeptBytes {
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

// Bounds of what take gives at once, far below MaxFrame even when JSON escapes every byte.
const (
	batchLines = 256
	batchBytes = 64 << 10
)

// take removes the next lines, grouped by process. While there are more it leaves a token in
// waiting.
func (b *backlog) take() []Log {
	b.mu.Lock()
	defer b.mu.Unlock()
	var logs []Log
	of := func(from origin) *Log {
		for i := range logs {
			if logs[i].ID == from.ID {
				return &logs[i]
			}
		}
		logs = append(logs, Log{ID: from.ID, Epoch: from.Epoch, Dropped: b.dropped[from]})
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
	for from := range b.dropped { // those of which no line is left
		of(from)
	}
	return logs
}

// giveBack puts lines that could not be sent where they were.
func (b *backlog) giveBack(logs []Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	later := b.entries
	b.entries, b.bytes = nil, 0
	b.put(logs)
	for _, e := range later {
		b.append(e)
	}
}

// snapshot gives everything without removing it, and restore takes it in again: across a
// re-execution.
func (b *backlog) snapshot() []Log {
	b.mu.Lock()
	defer b.mu.Unlock()
	var logs []Log
	for from, count := range b.dropped {
		logs = append(logs, Log{ID: from.ID, Epoch: from.Epoch, Dropped: count})
	}
	for _, e := range b.entries {
		if last := len(logs) - 1; last < 0 || logs[last].ID != e.ID {
			logs = append(logs, Log{ID: e.ID, Epoch: e.Epoch})
		}
		logs[len(logs)-1].Lines = append(logs[len(logs)-1].Lines, e.line)
	}
	return logs
}

func (b *backlog) restore(logs []Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(logs)
}

func (b *backlog) put(logs []Log) {
	for _, log := range logs {
		from := origin{log.ID, log.Epoch}
		for _, line := range log.Lines {
			b.append(entry{from, line})
		}
		if log.Dropped > 0 {
			b.dropped[from] += log.Dropped
			b.wake()
		}
	}
}
