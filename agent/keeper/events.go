package keeper

import "sync"

// eventQueue holds the events that the agent has not taken yet. Requests are answered while it does not, so it is bounded:
// in lines; exits are few and are never dropped.
type eventQueue struct {
	mu      sync.Mutex
	exits   []*Process
	logs    []*Log
	lines   int
	dropped map[origin]uint64
	waiting chan struct{} // a token while there may be something to take
}

func newEventQueue() *eventQueue {
	return &eventQueue{dropped: map[origin]uint64{}, waiting: make(chan struct{}, 1)}
}

func (q *eventQueue) add(event Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if event.Exited != nil {
		q.exits = append(q.exits, event.Exited)
	}
	if event.Log != nil {
		q.logs = append(q.logs, event.Log)
		q.lines += len(event.Log.Lines)
		for q.lines > MaxKeptLines {
			oldest := q.logs[0]
			q.logs = q.logs[1:]
			q.lines -= len(oldest.Lines)
			q.dropped[origin{oldest.ID, oldest.Epoch}] += oldest.Dropped + uint64(len(oldest.Lines))
		}
	}
	select {
	case q.waiting <- struct{}{}:
	default:
	}
}

func (q *eventQueue) take() (Event, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.exits) > 0 {
		exit := q.exits[0]
		q.exits = q.exits[1:]
		return Event{Exited: exit}, true
	}
	if len(q.logs) > 0 {
		log := q.logs[0]
		q.logs = q.logs[1:]
		q.lines -= len(log.Lines)
		from := origin{log.ID, log.Epoch}
		log.Dropped += q.dropped[from]
		delete(q.dropped, from)
		return Event{Log: log}, true
	}
	return Event{}, false
}
