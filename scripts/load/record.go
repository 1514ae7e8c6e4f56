package load

import (
	"sync"
	"time"
)

// recorder counts outcomes by class and by second.
type recorder struct {
	start time.Time

	mu      sync.Mutex
	classes map[string]*tally
	seconds []*tally // of HTTP requests, by the second in which they were due
	marks   []Mark
	stall   time.Duration
}

type tally struct {
	latency  histogram // of complete answers
	outcomes map[Outcome]int
	unsent   int // not sent although due: their stream still waited for an answer at the end
}

func newTally() *tally { return &tally{outcomes: map[Outcome]int{}} }

func (t *tally) add(latency time.Duration, outcome Outcome) {
	t.outcomes[outcome]++
	if outcome == OutcomeOK || outcome == OutcomeStatus {
		t.latency.add(latency)
	}
}

func (t *tally) total() int {
	total := 0
	for _, n := range t.outcomes {
		total += n
	}
	return total
}

func newRecorder(start time.Time) *recorder {
	return &recorder{start: start, classes: map[string]*tally{}}
}

// class adds a class to the report, even if it has no requests.
func (r *recorder) class(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.classes[name] == nil {
		r.classes[name] = newTally()
	}
}

// add counts a request. stall is the delay with which the generator sent it although its stream was
// idle, for example because the machine was busy.
func (r *recorder) add(class string, intended, ended time.Time, outcome Outcome,
	stall time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	latency := ended.Sub(intended)
	r.classes[class].add(latency, outcome)
	r.stall = max(r.stall, stall)
	if class == ClassTCP {
		return
	}
	r.second(int(intended.Sub(r.start)/time.Second)).add(latency, outcome)
}

func (r *recorder) unsent(class string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.classes[class].unsent += n
}

// second returns the tally of a second. Callers hold the lock.
func (r *recorder) second(i int) *tally {
	for len(r.seconds) <= i {
		r.seconds = append(r.seconds, newTally())
	}
	return r.seconds[i]
}

func (r *recorder) mark(label string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks = append(r.marks, Mark{Label: label, At: now.Sub(r.start)})
}
