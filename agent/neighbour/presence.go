package neighbour

import (
	"sync"
	"time"
)

// Presence is since when an agent is there for others: not since it began, when nobody can ask it yet. Of two agents the one whose
// questions find nobody is then always the earlier, so that both decide alike however slowly either starts.
type Presence struct {
	answers <-chan struct{}
	since   func() time.Time
}

// NewPresence is that of an agent that can be asked once answers is closed.
func NewPresence(answers <-chan struct{}) *Presence {
	return &Presence{answers: answers, since: sync.OnceValue(time.Now)}
}

// Since is a moment between that from which the agent can be asked and the first call after it: the agent calls it before it asks others. Zero
// before.
func (p *Presence) Since() time.Time {
	select {
	case <-p.answers:
		return p.since()
	default:
		return time.Time{}
	}
}
