// Package condition holds what the agent tells about itself: degraded states (conditions) and
// events. Every part raises and publishes here; the bus, the status server, sd_notify, the journal
// and the command line only show it.
package condition

import (
	"slices"
	"sync"
	"time"
)

// Severity says how bad a condition is.
type Severity string

// The severities, from bad to harmless.
const (
	Error   Severity = "error"   // something users asked for does not work
	Warning Severity = "warning" // it works, but not as it should
	Info    Severity = "info"    // worth knowing
)

// Condition is a degraded state that lasts until it is cleared.
type Condition struct {
	Code     string    `json:"code"` // stable, kebab-case: "envoy-not-live", "configuration-refused"
	Severity Severity  `json:"severity"`
	Since    time.Time `json:"since"`
	Sentence string    `json:"sentence"` // for people
}

// Event is something that happened.
type Event struct {
	Sequence uint64            `json:"sequence"` // grows by one with each event of this agent process
	Time     time.Time         `json:"time"`
	Kind     string            `json:"kind"`            // one of the Kind constants
	Epoch    *int              `json:"epoch,omitempty"` // the epoch it is about
	Sentence string            `json:"sentence"`        // for people
	Fields   map[string]string `json:"fields,omitempty"`
}

// The kinds of event. D-Bus signals and journal message IDs follow them.
const (
	KindEpochStarted     = "epoch-started"
	KindEpochLive        = "epoch-live"
	KindEpochExited      = "epoch-exited"      // fields: cause, status, signal
	KindReloadStarted    = "reload-started"    // fields: id, reason
	KindReloadFinished   = "reload-finished"   // fields: id, outcome, pending
	KindReloadRefused    = "reload-refused"    // fields: id, reasons
	KindDraining         = "draining"          //
	KindUndrained        = "undrained"         //
	KindStopping         = "stopping"          //
	KindSecretRotated    = "secret-rotated"    // fields: resource, not_after
	KindResourcesRefused = "resources-refused" // fields: type, error, resources
	// fields: severity, and of one problem file, line, object, field
	KindMeshProblem      = "mesh-problem"
	KindGaveUp           = "gave-up"           //
	KindConditionRaised  = "condition-raised"  // fields: code, severity
	KindConditionCleared = "condition-cleared" // fields: code
)

// kept is how many events are kept for those who ask later.
const kept = 256

// Board holds the conditions that stand and the last events. The zero value is not usable; see
// NewBoard.
type Board struct {
	mu         sync.Mutex
	conditions map[string]Condition
	events     []Event
	sequence   uint64
	watchers   map[chan Event]struct{}
	now        func() time.Time
}

// NewBoard returns an empty board.
func NewBoard() *Board {
	return &Board{
		conditions: map[string]Condition{},
		watchers:   map[chan Event]struct{}{},
		now:        time.Now,
	}
}

// Raise makes a condition stand. A condition of the same code keeps its Since; only a changed
// severity or sentence is an event.
func (b *Board) Raise(code string, severity Severity, sentence string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	previous, standing := b.conditions[code]
	if standing && previous.Severity == severity && previous.Sentence == sentence {
		return
	}
	now := Condition{Code: code, Severity: severity, Since: b.now(), Sentence: sentence}
	if standing {
		now.Since = previous.Since
	}
	b.conditions[code] = now
	b.publish(Event{Kind: KindConditionRaised, Sentence: sentence,
		Fields: map[string]string{"code": code, "severity": string(severity)}})
}

// Clear ends a condition; one that does not stand is left alone.
func (b *Board) Clear(code string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	previous, standing := b.conditions[code]
	if !standing {
		return
	}
	delete(b.conditions, code)
	b.publish(Event{Kind: KindConditionCleared, Sentence: "no longer: " + previous.Sentence,
		Fields: map[string]string{"code": code}})
}

// Publish tells an event; Sequence and Time are set here.
func (b *Board) Publish(event Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.publish(event)
}

func (b *Board) publish(event Event) {
	b.sequence++
	event.Sequence = b.sequence
	event.Time = b.now()
	if len(b.events) == kept {
		b.events = slices.Delete(b.events, 0, 1)
	}
	b.events = append(b.events, event)
	for watcher := range b.watchers {
		select {
		case watcher <- event:
		default: // a slow watcher loses events (it sees the gap in Sequence), nobody waits for it
		}
	}
}

// Conditions returns those that stand: errors first, then by age.
func (b *Board) Conditions() []Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	rank := map[Severity]int{Error: 0, Warning: 1, Info: 2}
	all := make([]Condition, 0, len(b.conditions))
	for _, c := range b.conditions {
		all = append(all, c)
	}
	slices.SortFunc(all, func(x, y Condition) int {
		if rank[x.Severity] != rank[y.Severity] {
			return rank[x.Severity] - rank[y.Severity]
		}
		if c := x.Since.Compare(y.Since); c != 0 {
			return c
		}
		if x.Code < y.Code {
			return -1
		}
		return 1
	})
	return all
}

// Events returns the kept events after the given sequence, oldest first.
func (b *Board) Events(after uint64) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []Event
	for _, e := range b.events {
		if e.Sequence > after {
			found = append(found, e)
		}
	}
	return found
}

// Watch returns a channel of the events from now on, and what ends the watch. A watcher that does
// not keep up loses events.
func (b *Board) Watch(buffer int) (<-chan Event, func()) {
	watcher := make(chan Event, buffer)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchers[watcher] = struct{}{}
	return watcher, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, watcher)
	}
}
