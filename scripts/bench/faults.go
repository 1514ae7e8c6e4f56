package main

import (
	"fmt"
	"strings"
	"time"

	"outrider.org/outrider/scripts/rig/fault"
)

type faultResult struct {
	Name      string          `json:"name"`
	What      string          `json:"what"`
	Harm      string          `json:"may_lose"`
	Runs      int             `json:"runs"`
	Requests  int             `json:"requests"`
	Lost      int             `json:"lost"`
	Pardoned  int             `json:"pardoned"`
	Recovered time.Duration   `json:"recovered_at_most_ns"`
	Failed    int             `json:"failed_runs"`
	Outcomes  []fault.Outcome `json:"outcomes"`
}

func (s settings) faultOptions() fault.Options {
	return fault.Options{Rate: s.rate, Drain: s.faultDrain, ParentShutdown: s.faultShutdown,
		ReloadSeconds: s.reloads, Kills: s.kills, Flood: s.flood, Strict: true}
}

// flood runs the fault "flood" for a longer time.
func flood(t *stage, s settings) any {
	one, found := fault.Find("flood")
	if !found {
		t.Fatal("no fault of that name")
	}
	return []*faultResult{inject(t, one, s.faultOptions(), 1)}
}

// faults injects each fault repeatedly. The fault that kills the agent at random moments does so
// several times per round.
func faults(t *stage, s settings) any {
	var results []*faultResult
	options := s.faultOptions()
	options.Flood = min(options.Flood, 5*time.Second)
	fmt.Printf("%-26s %5s %9s %6s %9s %12s %7s  %s\n", "fault", "runs", "requests", "lost",
		"pardoned", "recovered", "failed", "may lose")
	for _, one := range fault.All() {
		if s.fault != "" && one.Name != s.fault {
			continue
		}
		rounds := s.rounds
		if one.Name == "agent killed at random" {
			rounds = 1
		}
		results = append(results, inject(t, one, options, rounds))
	}
	return results
}

func inject(t *stage, one fault.Fault, options fault.Options, rounds int) *faultResult {
	result := &faultResult{Name: one.Name, What: one.Description, Harm: one.AllowedHarm.String(),
		Runs: rounds}
	var figures []string
	for round := range rounds {
		var outcome fault.Outcome
		ok := perform(one.Name, func(inner *stage) { outcome = fault.Run(inner, one, options) })
		result.Outcomes = append(result.Outcomes, outcome)
		result.Requests += outcome.Requests
		result.Lost += outcome.LostCount()
		result.Pardoned += outcome.AllowedLosses
		result.Recovered = max(result.Recovered, outcome.RecoveryTime)
		if outcome.ExtraResult != "" {
			figures = append(figures, outcome.ExtraResult)
		}
		if !ok || !outcome.OK() {
			result.Failed++
			t.Errorf("%s, round %d: lost %v; %s\n%v", one.Name, round+1, outcome.Lost,
				strings.Join(outcome.Errors, "; "), outcome.Report)
		}
	}
	fmt.Printf("%-26s %5d %9d %6d %9d %12s %7d  %s  %s\n", one.Name, rounds, result.Requests,
		result.Lost, result.Pardoned, millis(result.Recovered), result.Failed,
		result.Harm, strings.Join(figures, "; "))
	return result
}
