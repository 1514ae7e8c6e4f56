// Package fault injects what can go wrong with Envoy, its keeper and the agent into a whole
// Outrider under load, and tells what clients saw of it. Tests run each fault once at a moderate
// pace, benches many times at the full one.
package fault

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/rig"
)

// Fault is one thing that goes wrong.
type Fault struct {
	Name   string
	What   string // happens, and what must come of it, in a sentence
	Envoy  string // keys of [envoy] beside those of Options
	Blind  bool   // without envoy --mode validate
	Harm   Harm
	Inject func(*Scene)
}

// Harm is what clients may see of a fault at most.
type Harm int

// The harms.
const (
	// None: an Envoy that serves exists all the time; nothing may be lost.
	None Harm = iota
	// Cut: an Envoy that serves exists, but one that still holds connections is killed. What is in
	// flight on these dies with it; a new connection never fails.
	Cut
	// Outage: none is left. All is well again within a second.
	Outage
)

func (h Harm) String() string {
	return [...]string{"none", "what the killed Envoy held", "1 s"}[h]
}

// Options of a run.
type Options struct {
	Race           bool    // the agent is built with the race detector
	Rate           float64 // of the load, a factor on the standard one
	Drain          time.Duration
	ParentShutdown time.Duration
	Reloads        int           // of a storm: it lasts as many seconds
	Kills          int           // of the agent, at random moments
	Flood          time.Duration // of Envoy's log with nobody to take it
	Strict         bool          // a busy machine is no excuse for a late recovery
}

// Scene is a run of a fault.
type Scene struct {
	*rig.Rig
	testing.TB
	Options Options
	Load    *rig.Load
	Probe   *rig.Probe

	fault  Fault
	strike time.Time     // when the fault began to be felt; zero: it never is
	start  time.Duration // slowest spawn to LIVE of those that served before and after
	figure string        // what else there is to say of the run

	mu    sync.Mutex
	wrong []string
}

// Errorf notes what is wrong; the run goes on.
func (s *Scene) Errorf(format string, arguments ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, arguments...))
}

// Error is Errorf without a format.
func (s *Scene) Error(arguments ...any) { s.Errorf("%s", fmt.Sprint(arguments...)) }

// Strike notes that the fault is about to be felt.
func (s *Scene) Strike() {
	s.strike = time.Now()
	s.Load.Mark(strikeMark)
}

const strikeMark = "fault"

// Outcome of a run.
type Outcome struct {
	Requests  int                  `json:"requests"`
	Lost      map[load.Outcome]int `json:"lost"` // beyond what the fault's Harm pardons
	Pardoned  int                  `json:"pardoned"`
	Reuse     int                  `json:"reuse"`
	Recovered time.Duration        `json:"recovered"` // see rig.Probe
	// slowest spawn to LIVE, but for what the fault is about: what the machine's noise makes of
	// times
	Start   time.Duration `json:"start"`
	Slowest time.Duration `json:"slowest"` // answer of all, in the load
	Figure  string        `json:"figure,omitempty"`
	// what was not as it must be, beside losses
	Wrong  []string    `json:"wrong,omitempty"`
	Report load.Report `json:"-"`
}

// OK is whether all was as it must be.
func (o Outcome) OK() bool { return len(o.Lost) == 0 && len(o.Wrong) == 0 }

// Busy is whether the machine was too busy to tell anything: requests took so long that epochs were
// to end before them.
func (o Outcome) Busy() bool { return o.Slowest > busyAnswer || o.Report.Stall > busyStall }

// AllLost is the number of requests that were lost.
func (o Outcome) AllLost() int {
	n := 0
	for _, lost := range o.Lost {
		n += lost
	}
	return n
}

// The limits.
const (
	recoverWithin = time.Second
	quickStart    = 150 * time.Millisecond // spawn to LIVE on a quiet machine, generously
	// how many times slower than that a machine is taken for a busy one
	busiest    = 4
	busyAnswer = time.Second
	busyStall  = 300 * time.Millisecond
	warmUp     = 700 * time.Millisecond
	quiet      = 500 * time.Millisecond
)

// dropIn is the configuration of a run, with more keys of [envoy]. Files are not watched, so that a
// reload happens when the fault asks for it.
func (o Options) dropIn(fault Fault, more string) string {
	return fmt.Sprintf(
		"[reload]\nwatch = false\nvalidate = %t\n[envoy]\nrestart_limit = 0\ndrain_duration = "+
			"%q\nparent_shutdown_duration = %q\n%s%s",
		!fault.Blind, o.Drain, o.ParentShutdown, fault.Envoy, more)
}

// sound puts a configuration that works in place again.
func (s *Scene) sound() { s.Set(s.Options.dropIn(s.fault, "")) }

// Run runs a fault once: the load is on, the fault happens, everything works again, the next reload
// works.
func Run(t testing.TB, fault Fault, options Options) Outcome {
	t.Helper()
	s := &Scene{TB: t, Options: options, fault: fault,
		Rig: rig.New(t, rig.Options{Race: options.Race, TOML: options.dropIn(fault, "")})}
	s.StartReady()
	s.notice(s.Live())
	s.Load, s.Probe = s.StartLoad(options.Rate), s.StartProbe()
	time.Sleep(warmUp)
	fault.Inject(s)
	time.Sleep(quiet)
	s.worksAgain()
	time.Sleep(quiet)
	s.Probe.Stop()
	outcome := Outcome{Start: s.start, Report: s.Load.Stop()}
	s.judge(&outcome)
	s.End()
	outcome.Figure, outcome.Wrong = s.figure, s.wrong
	return outcome
}

// judge tells what of the losses the fault excuses, and when all was well again.
func (s *Scene) judge(outcome *Outcome) {
	s.Helper()
	report := outcome.Report
	outcome.Requests, outcome.Reuse = report.Total, report.Reuse
	for _, class := range report.Classes {
		outcome.Slowest = max(outcome.Slowest, class.Max)
	}
	limit := recoverWithin
	if !s.Options.Strict {
		limit = max(limit,
			time.Duration(float64(limit)*min(float64(outcome.Start)/float64(quickStart), busiest)))
	}
	excused := map[int]bool{}
	for _, mark := range report.Marks {
		if mark.Label != strikeMark {
			continue
		}
		// From when those were meant to be sent that were under way, to when the last could fail.
		for at := mark.At - outcome.Slowest; at < mark.At+limit+time.Second; at += time.Second {
			excused[int(max(at, 0)/time.Second)] = true
		}
	}
	all := rig.Losses(report, nil)
	switch s.fault.Harm {
	case None:
		outcome.Lost = all
	case Cut:
		outcome.Lost = rig.Losses(report, excused, load.HardReset)
	case Outage:
		outcome.Lost = rig.Losses(report, excused)
	}
	for _, n := range all {
		outcome.Pardoned += n
	}
	outcome.Pardoned -= outcome.AllLost()
	if s.strike.IsZero() {
		return
	}
	recovered, ok := s.Probe.Recovered(s.strike)
	outcome.Recovered = recovered
	switch {
	case !ok:
		s.Errorf("nobody serves %v later", time.Since(s.strike))
	case recovered > limit:
		s.Errorf("recovered after %v, later than %v", recovered, limit)
	}
}

// notice notes how long an epoch took to serve.
func (s *Scene) notice(one api.Epoch) { s.start = max(s.start, one.Live.Sub(one.Started)) }

// worksAgain checks that nothing of the fault is left: the next reload makes an epoch by hot
// restart or, where that cannot be had, side by side, its admin interface answers, and no error
// stands.
func (s *Scene) worksAgain() {
	s.Helper()
	before := s.Live()
	s.notice(before)
	s.sound()
	if result := s.Outrider("reload"); result.Exit != 0 {
		s.Errorf("the next reload: exit %d: %s%s", result.Exit, result.Out, result.Err)
	}
	now := s.Live()
	if now.PID == before.PID {
		s.Errorf("the next reload started no epoch: %+v", now)
	}
	s.healthy()
}

// healthy checks that readers see a healthy agent, within a moment.
func (s *Scene) healthy() {
	s.Helper()
	var why string
	rig.Eventually(s.TB, 30*time.Second, "all is well", func() bool {
		var wrong []string
		if ready, reason := s.Ready(); !ready {
			wrong = append(wrong, "not ready: "+reason)
		}
		if err := s.AdminAnswers(); err != nil {
			wrong = append(wrong, "admin view: "+err.Error())
		}
		var status api.Status
		s.JSON(&status, "status")
		for _, c := range status.Conditions {
			wrong = append(wrong, c.Code+": "+c.Sentence)
		}
		if now := strings.Join(wrong, "; "); now != why && now != "" {
			why = now
			s.Logf("not well yet: %s", why)
		}
		return len(wrong) == 0
	})
}

// refused reloads and expects a refusal that says something.
func (s *Scene) refused(says string) {
	s.Helper()
	result := s.Outrider("reload")
	if result.Exit != 1 || !strings.Contains(result.Err, says) {
		s.Errorf("reload: exit %d, expected a refusal that says %q: %s%s", result.Exit, says,
			result.Out, result.Err)
	}
}

// reloaded reloads and returns the epoch that was live before and the one that is now.
func (s *Scene) reloaded() (before, now api.Epoch) {
	s.Helper()
	before = s.Live()
	if result := s.Outrider("reload"); result.Exit != 0 {
		s.Errorf("reload: exit %d: %s%s", result.Exit, result.Out, result.Err)
	}
	return before, s.Live()
}
