package keeper

import "sync"

// eventQueue holds the events that the reader of Client.Events has not received yet, so that the
// client can read answers meanwhile. Its log lines are bounded: the oldest ones are dropped. No
// exit is dropped.
type eventQueue struct {
	lines *backlog // log lines; its channel waiting also signals that there are exits

	mu    sync.Mutex
	exits []*Process
}

func newEventQueue() *eventQueue { return &eventQueue{lines: newBacklog()} }

func (q *eventQueue) add(event Event) {
	if event.Exited != nil {
		q.mu.Lock()
		q.exits = append(q.exits, event.Exited)
		q.mu.Unlock()
		q.lines.wake()
	}
	if event.Log != nil {
		q.lines.restore([]LogLines{*event.Log})
	}
}

// take removes the next events, exits first.
func (q *eventQueue) take() []Event {
	q.mu.Lock()
	exits := q.exits
	q.exits = nil
	q.mu.Unlock()
	var events []Event
	for _, exit := range exits {
		events = append(events, Event{Exited: exit})
	}
	for _, log := range q.lines.take() {
		events = append(events, Event{Log: &log})
	}
	return events
}
