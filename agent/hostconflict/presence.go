package hostconflict

import (
	"sync"
	"time"
)

// Presence is the time from which other agents can ask this one, which is later than its start. Of
// two agents that start together, one that found nobody to ask is therefore always the earlier, so
// that both come to the same result however slowly either starts.
type Presence struct {
	answers <-chan struct{}
	since   func() time.Time
}

// NewPresence returns the Presence of an agent that answers once answers is closed.
func NewPresence(answers <-chan struct{}) *Presence {
	return &Presence{answers: answers, since: sync.OnceValue(time.Now)}
}

// Since returns the time of its first call after the agent could answer, zero before. The agent
// calls it before it asks others.
func (p *Presence) Since() time.Time {
	select {
	case <-p.answers:
		return p.since()
	default:
		return time.Time{}
	}
}
