package condition

import (
	"strconv"
	"time"

	"outrider.org/outrider/agent/repeat"
)

// most is the maximum number of events about one condition within repeat.LimitPeriod: its begin, a
// change of its class and its end.
const most = 3

// entry is a condition with the state of its events. The Registry's lock guards it.
type entry struct {
	now   *Condition // current state; nil: cleared
	said  *Condition // the condition as last published; nil: never, or published as cleared
	times repeat.ReportTimes
	late  *time.Timer // publishes a delayed event; nil: no event is delayed
	// omitted is the number of changes since the last event. The next event reports how many of
	// them had no event of their own.
	omitted int
}

// class identifies similar states of a condition: those whose texts differ only in digits, such as
// ports, addresses and times.
func (c *Condition) class() string {
	if c == nil {
		return ""
	}
	return string(c.Severity) + " " + repeat.ErrorClass(c.Sentence)
}

// publishChange publishes the difference between s.now and s.said, at once or as soon as the limits
// allow it. The caller holds mu.
func (b *Registry) publishChange(code string, s *entry) {
	if s.late != nil {
		s.late.Stop()
		s.late = nil
	}
	if s.now == nil && s.said == nil || s.now != nil && s.said != nil &&
		s.now.Severity == s.said.Severity && s.now.Sentence == s.said.Sentence {
		return
	}
	limit := most
	if s.now != nil && s.now.class() == s.said.class() {
		limit = 1
	}
	now := b.now()
	if due := s.times.Next(now, limit); due.After(now) {
		s.late = time.AfterFunc(due.Sub(now), func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.publishChange(code, s)
		})
		return
	}
	event := Event{Kind: KindConditionCleared, Fields: map[string]string{"code": code}}
	if s.now == nil {
		event.Sentence = "no longer: " + s.said.Sentence
	} else {
		event.Kind, event.Sentence = KindConditionRaised, s.now.Sentence
		event.Fields["severity"] = string(s.now.Severity)
	}
	if s.omitted > 1 {
		event.Fields["omitted"] = strconv.Itoa(s.omitted - 1)
	}
	s.said, s.omitted = s.now, 0
	s.times.Add(now)
	b.publish(event)
}
