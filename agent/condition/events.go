package condition

import (
	"strconv"
	"time"

	"outrider.org/outrider/agent/repeat"
)

// most is how many events about one condition are published within repeat.Span: for its begin, a
// change of its class and its end.
const most = 3

// entry is a condition with the state of its events. Its fields are guarded by the board.
type entry struct {
	now   *Condition // nil: cleared
	said  *Condition // nil: no event, or that it is cleared
	times repeat.Times
	late  *time.Timer // publishes what was not published at once; nil: nothing is left
	// omitted counts the changes since the last event that it does not mention.
	omitted int
}

// class is the identity of a condition: texts that differ in ports, addresses, times or numbers are
// of one class.
func (c *Condition) class() string {
	if c == nil {
		return ""
	}
	return string(c.Severity) + " " + repeat.Class(c.Sentence)
}

// publishChange publishes the difference between s.now and s.said, at once or as soon as the limits
// allow. Callers hold mu.
func (b *Board) publishChange(code string, s *entry) {
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
