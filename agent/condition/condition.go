// Package condition stores the agent's degraded states (conditions) and events on a Registry. All
// components raise and publish there; D-Bus, the status server, sd_notify, the journal and the
// command line read from it.
package condition

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"outrider.org/outrider/agent/repeat"
)

// Severity is the severity of a condition.
type Severity string

// The severities, most severe first.
const (
	Error   Severity = "error"   // a configured function does not work
	Warning Severity = "warning" // works with restrictions
	Info    Severity = "info"    // for information
)

// Condition is a degraded state that persists until it is cleared.
type Condition struct {
	// Code is stable and in kebab case: "envoy-not-live", "configuration-refused".
	Code     string    `json:"code"`
	Severity Severity  `json:"severity"`
	Since    time.Time `json:"since"`
	Sentence string    `json:"sentence"` // for people
}

// Event is an event in the life of the agent.
type Event struct {
	// Sequence increases by one with each event of this agent process.
	Sequence uint64            `json:"sequence"`
	Time     time.Time         `json:"time"`
	Kind     string            `json:"kind"`            // one of the Kind constants
	Epoch    *int              `json:"epoch,omitempty"` // affected epoch, if any
	Sentence string            `json:"sentence"`        // for people
	Fields   map[string]string `json:"fields,omitempty"`
}

// The kinds of event. D-Bus signals and journal message IDs correspond to them.
const (
	KindEpochStarted     = "epoch-started"
	KindEpochLive        = "epoch-live"
	KindEpochExited      = "epoch-exited"    // fields: cause, status, signal
	KindReloadStarted    = "reload-started"  // fields: id, reason
	KindReloadFinished   = "reload-finished" // fields: id, outcome, pending
	KindReloadRefused    = "reload-refused"  // fields: id, reasons
	KindDraining         = "draining"
	KindUndrained        = "undrained"
	KindStopping         = "stopping"
	KindSecretRotated    = "secret-rotated"    // fields: resource, not_after
	KindResourcesRefused = "resources-refused" // fields: type, error, resources
	KindDiscoveryMoved   = "discovery-moved"   // fields: address, before, reason
	// KindMeshProblem has the field severity and, for a single problem, file, line, object and
	// field.
	KindMeshProblem       = "mesh-problem"
	KindRestartsExhausted = "gave-up"
	KindConditionRaised   = "condition-raised"  // fields: code, severity
	KindConditionCleared  = "condition-cleared" // fields: code
)

// maxEvents is the number of events that a Registry retains.
const maxEvents = 256

// Registry holds the current conditions and the last events. Create it with NewRegistry. It is safe
// for concurrent use.
type Registry struct {
	mu         sync.Mutex
	conditions map[string]*entry // by code
	events     []Event
	sequence   uint64
	watchers   map[chan Event]struct{}
	repeated   repeat.Limiter
	now        func() time.Time
}

// NewRegistry returns an empty Registry.
func NewRegistry() *Registry {
	return &Registry{
		conditions: map[string]*entry{},
		watchers:   map[chan Event]struct{}{},
		now:        time.Now,
	}
}

// Raise adds or updates a condition; an update retains Since. Conditions returns the new state at
// once.
//
// Events are limited. At most three a minute announce that the condition begins or changes its
// class (severity, or the sentence without digits); at most one a minute announces other changes of
// the sentence. An event beyond a limit is published later, with the state at that time.
func (b *Registry) Raise(code string, severity Severity, sentence string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.conditions[code]
	if s == nil {
		s = &entry{}
		b.conditions[code] = s
	}
	if s.now != nil && s.now.Severity == severity && s.now.Sentence == sentence {
		return
	}
	since := b.now()
	if s.now != nil {
		since = s.now.Since
	}
	s.now = &Condition{Code: code, Severity: severity, Since: since, Sentence: sentence}
	s.omitted++
	b.publishChange(code, s)
}

// Clear removes a condition, if present. Its event is subject to the limits of Raise.
func (b *Registry) Clear(code string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.conditions[code]; s != nil && s.now != nil {
		s.now = nil
		s.omitted++
		b.publishChange(code, s)
	}
}

// limits bounds the events of kinds that a faulty peer or file can cause without end. Class bounds
// the events of a kind that have the same sentence, All bounds all events of the kind. A single
// change of the mesh configuration causes at most 21 KindMeshProblem events.
var limits = map[string]repeat.Limits{
	KindMeshProblem:      {PerClass: most, PerSubject: 3 * 21},
	KindResourcesRefused: {PerClass: most, PerSubject: 20},
	KindDiscoveryMoved:   {PerClass: most, PerSubject: 20},
	KindReloadRefused:    {PerClass: most, PerSubject: 20},
}

// Publish stores an event and sends it to watchers. It sets Sequence and Time. Mesh problems,
// refused resources and refused reloads beyond limits are omitted; the next event of the kind has
// their number in its field "omitted".
func (b *Registry) Publish(event Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if limits, ok := limits[event.Kind]; ok {
		omitted, ok := b.repeated.Allow(b.now(), event.Kind, event.Sentence, limits)
		if !ok {
			return
		}
		if omitted > 0 {
			event.Fields = maps.Clone(event.Fields)
			event.Fields["omitted"] = strconv.Itoa(omitted)
		}
	}
	b.publish(event)
}

func (b *Registry) publish(event Event) {
	b.sequence++
	event.Sequence = b.sequence
	event.Time = b.now()
	if len(b.events) == maxEvents {
		b.events = slices.Delete(b.events, 0, 1)
	}
	b.events = append(b.events, event)
	for watcher := range b.watchers {
		select {
		case watcher <- event:
		default: // drop the event: a slow watcher sees the gap in Sequence
		}
	}
}

// Conditions returns the current conditions, ordered by severity, then oldest first.
func (b *Registry) Conditions() []Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	rank := map[Severity]int{Error: 0, Warning: 1, Info: 2}
	all := make([]Condition, 0, len(b.conditions))
	for _, s := range b.conditions {
		if s.now != nil {
			all = append(all, *s.now)
		}
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

// Events returns the retained events after a sequence number, oldest first.
func (b *Registry) Events(after uint64) []Event {
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

// Watch returns a channel of new events and a function that ends the watch. If the channel's buffer
// is full, events are dropped.
func (b *Registry) Watch(buffer int) (<-chan Event, func()) {
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
