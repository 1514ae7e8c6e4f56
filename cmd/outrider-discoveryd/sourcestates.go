package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// downFor is how long a source must fail before a condition is raised.
const downFor = 5 * time.Second

// sourceStates observes the states of all sources, for systemd's STATUS=, conditions and metrics.
type sourceStates struct {
	all   []source.Source
	board *condition.Registry

	mu      sync.Mutex
	failing map[string]failure // sources that fail now, by name
	errors  map[string]uint64  // number of failures since the start, by name
}

// failure is the reason why a source fails, with the time at which it began to fail.
type failure struct {
	since  time.Time
	reason string
}

func newSourceStates(all []source.Source, board *condition.Registry) *sourceStates {
	return &sourceStates{all: all, board: board, failing: map[string]failure{},
		errors: map[string]uint64{}}
}

// observe reads the states of all sources, and raises or clears their conditions. It returns a
// sentence about all sources with a problem; "": there are none.
func (s *sourceStates) observe(now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sentences []string
	say := func(code, sentence string, raise bool) {
		if sentence != "" {
			sentences = append(sentences, sentence)
		}
		if sentence != "" && raise {
			s.board.Raise(code, condition.Warning, sentence)
		} else {
			s.board.Clear(code)
		}
	}
	for _, one := range s.all {
		name, status := one.Name(), one.Status()
		down, lasts := "", false
		if status.Err == nil {
			delete(s.failing, name)
			if !status.Synced {
				down = name + " has not synchronised yet"
			}
		} else {
			f, known := s.failing[name]
			if !known || f.reason != status.Err.Error() {
				s.errors[name]++
				f.reason = status.Err.Error()
			}
			if !known {
				f.since = now
			}
			s.failing[name] = f
			lasts = now.Sub(f.since) >= downFor
			down = fmt.Sprintf("%s is down since %s: %s", name,
				f.since.UTC().Format("2006-01-02 15:04:05 UTC"), f.reason)
		}
		say("source-"+name+"-down", down, lasts)
		problem := status.Problem
		if problem != "" {
			problem = name + ": " + problem
		}
		say("source-"+name+"-problem", problem, true)
	}
	return strings.Join(sentences, "; ")
}

var (
	sourceSynchronised = sourceDesc("synchronised",
		"1 if the source has delivered its complete state since the start.")
	sourceConnected = sourceDesc("connected", "1 if the source is in contact with its server.")
	sourceContact   = sourceDesc("last_contact_timestamp_seconds",
		"When the last contact of the source succeeded.")
	sourceObjects = sourceDesc("objects", "Objects or services that the source has delivered.")
	sourceErrors  = sourceDesc("errors_total", "Failures of contact since the start.")
)

func sourceDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("outrider_source_"+name, help, []string{"source"}, nil)
}

// Describe implements prometheus.Collector.
func (s *sourceStates) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{sourceSynchronised, sourceConnected, sourceContact,
		sourceObjects, sourceErrors} {
		out <- desc
	}
}

// Collect implements prometheus.Collector. It omits the time of the last contact of a source that
// has not been reached yet.
func (s *sourceStates) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		status := one.Status()
		gauge := func(desc *prometheus.Desc, value float64) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, one.Name())
		}
		truth := map[bool]float64{true: 1}
		gauge(sourceSynchronised, truth[status.Synced])
		gauge(sourceConnected, truth[status.Err == nil && !status.LastContact.IsZero()])
		gauge(sourceObjects, float64(status.Inputs))
		if !status.LastContact.IsZero() {
			gauge(sourceContact, float64(status.LastContact.UnixMilli())/1000)
		}
		out <- prometheus.MustNewConstMetric(sourceErrors, prometheus.CounterValue,
			float64(s.errors[one.Name()]), one.Name())
	}
}
