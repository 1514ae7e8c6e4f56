package hostconflict

import (
	"sync"
	"time"
)

// ReachableTime is the time since which other agents can query this one. An agent queries the
// others only after that time. If it then does not find another agent that starts at the same time,
// it became reachable first. Both agents therefore agree on which of them was first, however slow
// either start is.
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
