package load

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Report is the result of a run. Total, Lost, Retriable and Seconds are about HTTP; tcp appears in
// Classes only. Times are nanoseconds in JSON.
type Report struct {
	Total     int           `json:"total"`
	Lost      int           `json:"lost"`  // not answered correctly, without Retriable
	Retriable int           `json:"reuse"` // see OutcomeRetriable
	Duration  time.Duration `json:"duration"`
	// MaxSendDelay is the maximum delay with which the generator itself sent a request. The
	// latencies include such delays.
	MaxSendDelay time.Duration          `json:"stall"`
	Classes      map[string]ClassResult `json:"classes"`
	Seconds      []SecondResult         `json:"seconds"`
	Marks        []Mark                 `json:"marks,omitempty"`
}

// Latency is the latency of complete answers, measured from the time at which the requests were
// due.
type Latency struct {
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
	Max time.Duration `json:"max"`
}

// ClassResult is the result of one class of load: ka, nc, h2, tcp (whose requests are messages).
type ClassResult struct {
	Requests int `json:"requests"`
	// Unsent is the number of requests that were due but not sent, because their stream still
	// waited for an answer at the end.
	Unsent   int             `json:"unsent,omitempty"`
	Outcomes map[Outcome]int `json:"outcomes"`
	Latency
}

// SecondResult is the result of the requests that were due in one second.
type SecondResult struct {
	Second   int             `json:"second"` // since the start
	Requests int             `json:"requests"`
	Errors   map[Outcome]int `json:"errors,omitempty"` // all but OutcomeOK
	Marks    []string        `json:"marks,omitempty"`  // labels of marks in this second
	Latency
}

// Mark is an event during a run.
type Mark struct {
	Label string        `json:"label"`
	At    time.Duration `json:"at"` // since the start
}

func (t *tally) latencies() Latency {
	return Latency{P50: t.latency.quantile(0.5), P99: t.latency.quantile(0.99),
		Max: t.latency.largest}
}

func (r *recorder) report(now time.Time) Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := Report{
		Duration:     now.Sub(r.start),
		MaxSendDelay: r.stall,
		Classes:      map[string]ClassResult{},
		Marks:        slices.Clone(r.marks),
	}
	for name, class := range r.classes {
		report.Classes[name] = ClassResult{Requests: class.total(), Unsent: class.unsent,
			Outcomes: maps.Clone(class.outcomes), Latency: class.latencies()}
		if name == ClassTCP {
			continue
		}
		report.Total += class.total()
		report.Retriable += class.outcomes[OutcomeRetriable]
		report.Lost += class.total() - class.outcomes[OutcomeOK] - class.outcomes[OutcomeRetriable]
	}
	for i := range r.seconds {
		report.Seconds = append(report.Seconds, r.describe(i))
	}
	return report
}

// describe returns the report of a second. Callers hold the lock.
func (r *recorder) describe(i int) SecondResult {
	t := r.second(i)
	second := SecondResult{Second: i, Requests: t.total(), Latency: t.latencies()}
	for outcome, n := range t.outcomes {
		if outcome != OutcomeOK {
			if second.Errors == nil {
				second.Errors = map[Outcome]int{}
			}
			second.Errors[outcome] = n
		}
	}
	for _, mark := range r.marks {
		if int(mark.At/time.Second) == i {
			second.Marks = append(second.Marks, mark.Label)
		}
	}
	return second
}

// print writes a line for each complete second, and the remaining ones at the end.
func (r *RunningLoad) print(ctx context.Context) {
	lines := json.NewEncoder(r.config.Output)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	printed := 0
	flush := func(until int) {
		r.recorder.mu.Lock()
		var seconds []SecondResult
		for ; printed < until; printed++ {
			seconds = append(seconds, r.recorder.describe(printed))
		}
		r.recorder.mu.Unlock()
		for _, second := range seconds {
			_ = lines.Encode(second) // no error matters: the run continues without a reader
		}
	}
	for {
		select {
		case <-tick.C:
			flush(int((time.Since(r.recorder.start) - r.config.Timeout) / time.Second))
			continue
		case <-ctx.Done():
		}
		break
	}
	r.streams.Wait()
	r.recorder.mu.Lock()
	all := len(r.recorder.seconds)
	r.recorder.mu.Unlock()
	flush(max(printed, all))
}

// CompareMarkLatency returns two maximum latencies. during is that of the seconds that contain a
// mark with this label, and of the seconds that follow them. quiet is that of the seconds that
// neither contain nor follow any mark, except for the first second, in which all connections are
// made.
func (r Report) CompareMarkLatency(label string) (during, quiet time.Duration) {
	near, nearAny := map[int]bool{}, map[int]bool{0: true}
	for _, mark := range r.Marks {
		second := int(mark.At / time.Second)
		for _, i := range []int{second, second + 1} {
			nearAny[i] = true
			near[i] = near[i] || mark.Label == label
		}
	}
	for _, second := range r.Seconds {
		switch {
		case near[second.Second]:
			during = max(during, second.Max)
		case !nearAny[second.Second]:
			quiet = max(quiet, second.Max)
		}
	}
	return during, quiet
}

// String formats the report in a few lines.
func (r Report) String() string {
	var text strings.Builder
	fmt.Fprintf(&text,
		"%d requests in %v: %d lost, %d to be tried again (reuse-eof); generator late by %v at "+
			"most\n",
		r.Total, r.Duration.Round(time.Millisecond), r.Lost, r.Retriable,
		r.MaxSendDelay.Round(10*time.Microsecond))
	for _, name := range slices.Sorted(maps.Keys(r.Classes)) {
		class := r.Classes[name]
		fmt.Fprintf(&text, "  %-3s %7d  p50 %s  p99 %s  max %s ms", name, class.Requests,
			millis(class.P50), millis(class.P99), millis(class.Max))
		for _, outcome := range slices.Sorted(maps.Keys(class.Outcomes)) {
			if outcome != OutcomeOK {
				fmt.Fprintf(&text, "  %s %d", outcome, class.Outcomes[outcome])
			}
		}
		text.WriteByte('\n')
	}
	for _, second := range r.Seconds {
		if len(second.Errors) == 0 && len(second.Marks) == 0 {
			continue
		}
		fmt.Fprintf(&text, "  second %d: max %s ms", second.Second, millis(second.Max))
		for _, outcome := range slices.Sorted(maps.Keys(second.Errors)) {
			fmt.Fprintf(&text, "  %s %d", outcome, second.Errors[outcome])
		}
		if len(second.Marks) > 0 {
			fmt.Fprintf(&text, "  (%s)", strings.Join(second.Marks, ", "))
		}
		text.WriteByte('\n')
	}
	return text.String()
}

func millis(d time.Duration) string {
	return fmt.Sprint(math.Round(float64(d)/float64(time.Millisecond)*100) / 100)
}
