package hostconflict

import (
	"sync"
	"time"
)

// PresenceTime is the time from which other agents can query this one; it is later than the start.
// If two agents start together, the one that found no other agent is always the earlier one,
// however slow either start is. Both therefore come to the same result.
type PresenceTime struct {
	answers <-chan struct{}
	since   func() time.Time
}

// NewPresenceTime returns the PresenceTime of an agent that answers once answers is closed.
func NewPresenceTime(answers <-chan struct{}) *PresenceTime {
	return &PresenceTime{answers: answers, since: sync.OnceValue(time.Now)}
}

// Since returns the time of its first call after the agent could answer, zero before. The agent
// calls it before it queries other agents.
func (p *PresenceTime) Since() time.Time {
	select {
	case <-p.answers:
		return p.since()
	default:
		return time.Time{}
	}
}
