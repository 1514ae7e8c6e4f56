package hostconflict

import (
	"sync"
	"time"
)

// ReachableTime is the time since which other agents can query this one; it is later than the
// start. Of two agents that start at the same time, one that finds no other agent always has the
// earlier time, however slow either start is. Both agents therefore agree on which of them is
// first.
type ReachableTime struct {
	answers <-chan struct{}
	since   func() time.Time
}

// NewReachableTime returns the ReachableTime of an agent that responds to queries once the channel
// answers is closed.
func NewReachableTime(answers <-chan struct{}) *ReachableTime {
	return &ReachableTime{answers: answers, since: sync.OnceValue(time.Now)}
}

// Since returns the time of its first call after the agent could respond to queries, zero before.
// The agent calls it before it queries other agents.
func (p *ReachableTime) Since() time.Time {
	select {
	case <-p.answers:
		return p.since()
	default:
		return time.Time{}
	}
}
