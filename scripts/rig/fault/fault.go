// Package fault injects failures of Envoy, its keeper and the agent into a complete Outrider under
// load, and evaluates the effect on clients. Tests run each fault once at a moderate rate;
// benchmarks run it many times at the full rate.
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

// Fault is one kind of failure.
type Fault struct {
	Name         string
	Description  string // description of the fault and of the expected result
	Envoy        string // TOML with additional keys of [envoy]
	NoValidation bool   // disable validation of the bootstrap (envoy --mode validate)
	AllowedHarm  Harm
	Inject       func(*Execution)
}

// Harm is the worst effect on clients that a fault may have.
type Harm int

// The values of Harm.
const (
	// HarmNone: an Envoy serves all the time, and no request may be lost.
	HarmNone Harm = iota
	// HarmConnectionsCut: an Envoy serves all the time, but one that still has connections is
	// killed. Requests on these connections may be lost; new connections must not fail.
	HarmConnectionsCut
	// HarmOutage: for a moment no Envoy runs. Service must be restored within a second.
	HarmOutage
)

func (h Harm) String() string {
	return [...]string{"none", "what the killed Envoy held", "1 s"}[h]
}

// Options are the options of a run.
type Options struct {
	Race           bool    // build the agent with the race detector
	Rate           float64 // rate of the load, relative to the standard load
	Drain          time.Duration
	ParentShutdown time.Duration
	ReloadSeconds  int           // duration of a series of reloads, in seconds
	Kills          int           // number of kills of the agent at random moments
	Flood          time.Duration // for how long Envoy logs while no agent reads the log
	Strict         bool          // allow no longer recovery time on a busy machine
}

// Execution is a run of one fault.
type Execution struct {
	*rig.Rig
	testing.TB
	Options Options
	Load    *rig.Load
	Probe   *rig.Probe

	fault  Fault
	strike time.Time // time at which the fault takes effect; zero: never
	// maximum time from the start of an epoch until it was live, apart from the fault
	start  time.Duration
	figure string // additional result to print, as a sentence

	mu    sync.Mutex
	wrong []string
}

// Errorf records an error. It does not end the run.
func (s *Execution) Errorf(format string, arguments ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, arguments...))
}

// Error is like Errorf without a format.
func (s *Execution) Error(arguments ...any) { s.Errorf("%s", fmt.Sprint(arguments...)) }

// MarkFault records that the fault is injected now. It must be called just before the injection.
func (s *Execution) MarkFault() {
	s.strike = time.Now()
	s.Load.Mark(strikeMark)
}

const strikeMark = "fault"

// Outcome is the result of a run.
type Outcome struct {
	Requests int `json:"requests"`
	// requests lost beyond what the fault's Harm allows
	Lost          map[load.Outcome]int `json:"lost"`
	AllowedLosses int                  `json:"pardoned"`
	Retriable     int                  `json:"reuse"`
	RecoveryTime  time.Duration        `json:"recovered"` // time until recovery, see rig.Probe
	// MaxEpochStartTime is the maximum time from the start of an epoch until it was live, apart
	// from the fault. It shows how busy the machine was.
	MaxEpochStartTime time.Duration `json:"start"`
	Slowest           time.Duration `json:"slowest"` // duration of the slowest request in the load
	ExtraResult       string        `json:"figure,omitempty"`
	// Errors contains errors other than lost requests.
	Errors []string    `json:"wrong,omitempty"`
	Report load.Report `json:"-"`
}

// OK reports whether the run passed.
func (o Outcome) OK() bool { return len(o.Lost) == 0 && len(o.Errors) == 0 }

// MachineBusy reports whether the machine was too busy to judge the run: requests took longer than
// a recovery may take.
func (o Outcome) MachineBusy() bool {
	return o.Slowest > busyAnswer || o.Report.MaxSendDelay > busyStall
}

// LostCount returns the number of requests in Lost.
func (o Outcome) LostCount() int {
	n := 0
	for _, lost := range o.Lost {
		n += lost
	}
	return n
}

// Durations that the evaluation of a run uses.
const (
	recoverWithin = time.Second
	quickStart    = 150 * time.Millisecond // maximum time to become live on an idle machine
	// busiest bounds the factor by which a busy machine extends recoverWithin.
	busiest    = 4
	busyAnswer = time.Second
	busyStall  = 300 * time.Millisecond
	warmUp     = 700 * time.Millisecond
	quiet      = 500 * time.Millisecond
)

// dropIn returns the configuration file of a run. more contains additional keys of [envoy]. The
// agent does not watch files, so reloads happen only on request.
func (o Options) dropIn(fault Fault, more string) string {
	return fmt.Sprintf(
		"[reload]\nwatch = false\nvalidate = %t\n[envoy]\nrestart_limit = 0\ndrain_duration = "+
			"%q\nparent_shutdown_duration = %q\n%s%s",
		!fault.NoValidation, o.Drain, o.ParentShutdown, fault.Envoy, more)
}

// sound restores a valid configuration.
func (s *Execution) sound() { s.SetTOML(s.Options.dropIn(s.fault, "")) }

// Run runs a fault once under load: it injects the fault, waits until service has recovered, and
// checks that the next reload succeeds.
func Run(t testing.TB, fault Fault, options Options) Outcome {
	t.Helper()
	s := &Execution{TB: t, Options: options, fault: fault,
		Rig: rig.New(t, rig.Options{Race: options.Race, TOML: options.dropIn(fault, "")})}
	s.StartReady()
	s.notice(s.LiveEpoch())
	s.Load, s.Probe = s.StartLoad(options.Rate), s.StartProbe()
	time.Sleep(warmUp)
	fault.Inject(s)
	time.Sleep(quiet)
	s.worksAgain()
	time.Sleep(quiet)
	s.Probe.Stop()
	outcome := Outcome{MaxEpochStartTime: s.start, Report: s.Load.Stop()}
	s.evaluate(&outcome)
	s.End()
	outcome.ExtraResult, outcome.Errors = s.figure, s.wrong
	return outcome
}

// evaluate determines which losses the fault allows, and when service had recovered.
func (s *Execution) evaluate(outcome *Outcome) {
	s.Helper()
	report := outcome.Report
	outcome.Requests, outcome.Retriable = report.Total, report.Retriable
	for _, class := range report.Classes {
		outcome.Slowest = max(outcome.Slowest, class.Max)
	}
	limit := recoverWithin
	if !s.Options.Strict {
		limit = max(limit,
			time.Duration(float64(limit)*min(float64(outcome.MaxEpochStartTime)/float64(quickStart),
				busiest)))
	}
	excused := map[int]bool{}
	for _, mark := range report.Marks {
		if mark.Label != strikeMark {
			continue
		}
		// Losses are reported in the second in which a request was due. Include requests that were
		// in progress at the mark, and those until the last allowed failure.
		for at := mark.At - outcome.Slowest; at < mark.At+limit+time.Second; at += time.Second {
			excused[int(max(at, 0)/time.Second)] = true
		}
	}
	all := rig.CountLosses(report, nil)
	switch s.fault.AllowedHarm {
	case HarmNone:
		outcome.Lost = all
	case HarmConnectionsCut:
		outcome.Lost = rig.CountLosses(report, excused, load.OutcomeHardReset)
	case HarmOutage:
		outcome.Lost = rig.CountLosses(report, excused)
	}
	for _, n := range all {
		outcome.AllowedLosses += n
	}
	outcome.AllowedLosses -= outcome.LostCount()
	if s.strike.IsZero() {
		return
	}
	recovered, ok := s.Probe.Recovered(s.strike)
	outcome.RecoveryTime = recovered
	switch {
	case !ok:
		s.Errorf("nobody serves %v later", time.Since(s.strike))
	case recovered > limit:
		s.Errorf("recovered after %v, later than %v", recovered, limit)
	}
}

// notice updates s.start with the time that an epoch needed to become live.
func (s *Execution) notice(one api.Epoch) { s.start = max(s.start, one.LiveSince.Sub(one.Started)) }

// worksAgain checks that the fault has no lasting effect: a reload starts a new epoch, the proxy is
// ready, the admin interface responds, and no condition is active.
func (s *Execution) worksAgain() {
	s.Helper()
	before := s.LiveEpoch()
	s.notice(before)
	s.sound()
	if result := s.RunOutrider("reload"); result.ExitCode != 0 {
		s.Errorf("the next reload: exit %d: %s%s", result.ExitCode, result.Stdout, result.Stderr)
	}
	now := s.LiveEpoch()
	if now.PID == before.PID {
		s.Errorf("the next reload started no epoch: %+v", now)
	}
	s.healthy()
}

// healthy waits until the proxy is ready, the admin interface responds, and no condition is active.
func (s *Execution) healthy() {
	s.Helper()
	var why string
	rig.Eventually(s.TB, time.Minute, "all is well", func() bool {
		var wrong []string
		if ready, reason := s.Ready(); !ready {
			wrong = append(wrong, "not ready: "+reason)
		}
		if err := s.CheckAdmin(); err != nil {
			wrong = append(wrong, "admin view: "+err.Error())
		}
		var status api.Status
		s.RunOutriderJSON(&status, "status")
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

// refused requests a reload, which must be refused with a reason that contains says.
func (s *Execution) refused(says string) {
	s.Helper()
	result := s.RunOutrider("reload")
	if result.ExitCode != 1 || !strings.Contains(result.Stderr, says) {
		s.Errorf("reload: exit %d, expected a refusal that says %q: %s%s", result.ExitCode, says,
			result.Stdout, result.Stderr)
	}
}

// reloaded requests a reload, and returns the live epochs before and after it.
func (s *Execution) reloaded() (before, now api.Epoch) {
	s.Helper()
	before = s.LiveEpoch()
	if result := s.RunOutrider("reload"); result.ExitCode != 0 {
		s.Errorf("reload: exit %d: %s%s", result.ExitCode, result.Stdout, result.Stderr)
	}
	return before, s.LiveEpoch()
}
