package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// statusOnly is a source that only has a status.
type statusOnly struct{ status source.Status }

func (*statusOnly) Name() string              { return "consul" }
func (*statusOnly) Run(context.Context) error { return nil }
func (s *statusOnly) Status() source.Status   { return s.status }

// TestSourceStates observes a source that starts, fails, has a problem and then works. It checks
// the sentence, the conditions and the metrics in each state.
func TestSourceStates(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	board, one := condition.NewRegistry(), &statusOnly{}
	states := newSourceStates([]source.Source{one}, board)
	const down = "consul is down since 2026-01-02 03:04:05 UTC: refused"
	for _, test := range []struct {
		name       string
		status     source.Status
		after      time.Duration
		says       string
		conditions string
		errors     float64
	}{
		{"start", source.Status{}, 0, "consul has not synchronised yet", "", 0},
		{"failure", source.Status{Err: errors.New("refused")}, 0, down, "", 1},
		{"same failure", source.Status{Err: errors.New("refused")}, 4 * time.Second, down, "", 1},
		{"it lasts", source.Status{Err: errors.New("refused")}, 5 * time.Second, down, down, 1},
		{"problem", source.Status{Synced: true, LastContact: begun, Problem: "an empty list"},
			6 * time.Second, "consul: an empty list", "consul: an empty list", 1},
		{"contact", source.Status{Synced: true, LastContact: begun, Inputs: 3}, 7 * time.Second, "",
			"", 1},
	} {
		one.status = test.status
		says := states.observe(begun.Add(test.after))
		var raised []string
		for _, c := range board.Conditions() {
			raised = append(raised, c.Sentence)
		}
		if diff := cmp.Diff([]string{test.says, test.conditions},
			[]string{says, strings.Join(raised, "; ")}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		if got := valueOf(t, states, "outrider_source_errors_total"); got != test.errors {
			t.Errorf("%s: %v errors, want %v", test.name, got, test.errors)
		}
	}
	for name, want := range map[string]float64{"synchronised": 1, "connected": 1, "objects": 3,
		"last_contact_timestamp_seconds": float64(begun.Unix())} {
		if got := valueOf(t, states, "outrider_source_"+name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// valueOf returns the value of a metric whose only sample is that of the test's source.
func valueOf(t *testing.T, states *sourceStates, name string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(states)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Errorf("no metric %s", name)
	return -1
}
