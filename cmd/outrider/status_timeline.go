package main

import (
	"fmt"
	"time"

	"outrider.org/outrider/agent/api"
)

// htmlEpoch is a row of the timeline: one epoch.
type htmlEpoch struct {
	Number        int
	Detail, Title string
	Bars          []htmlBar
}

// htmlBar is a phase of an epoch on the timeline. Positions are percentages of the timeline's
// period.
type htmlBar struct {
	Class       string // starting, live, draining, exited
	Left, Width float64
}

// htmlEpochs returns rows for the newest epochs, newest first. The timeline begins at from, the
// start of the oldest of them, and ends now.
func htmlEpochs(epochs []api.Epoch, now time.Time) (rows []htmlEpoch, from string) {
	epochs = epochs[max(0, len(epochs)-mostEpochsShown):]
	if len(epochs) == 0 {
		return nil, ""
	}
	first := now
	for _, e := range epochs {
		if e.Started.Before(first) {
			first = e.Started
		}
	}
	whole := max(now.Sub(first), time.Second)
	percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(whole) }
	for _, e := range epochs {
		row := htmlEpoch{Number: e.Number, Title: "started " + e.Started.Format(time.DateTime)}
		bar := func(class string, from, to time.Time) {
			row.Bars = append(row.Bars, htmlBar{class, percent(from.Sub(first)),
				percent(to.Sub(from))})
		}
		end := now
		if !e.Exited.IsZero() {
			end = e.Exited
			row.Detail = e.ExitCause
			row.Title += ", exited " + e.Exited.Format(time.DateTime)
		} else {
			row.Detail = fmt.Sprintf("%s, pid %d, %s", e.State, e.PID,
				count(int(e.Connections), "connection", "connections"))
		}
		live := end
		if !e.LiveSince.IsZero() {
			live = e.LiveSince
		}
		bar("starting", e.Started, live)
		if live.Before(end) {
			class := "live"
			if e.State == api.EpochDraining || e.State == api.EpochExited {
				class = string(e.State)
			}
			bar(class, live, end)
		}
		rows = append([]htmlEpoch{row}, rows...)
	}
	return rows, first.Format(time.DateTime)
}
