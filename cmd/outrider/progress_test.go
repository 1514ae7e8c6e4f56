package main

import (
	"bytes"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
)

func TestProgress_ShowsPhaseAndTime(t *testing.T) {
	left := uint64(1)
	for want, last := range map[string]api.Progress{
		"reloading (for 5 s)": {Phase: "reloading"},
		"waiting for epoch 2 to finish draining (up to 23 s)": {Phase: "waiting for epoch 2 to " +
			"finish draining", Until: noon.Add(23 * time.Second)},
		"draining, 1 connection left (up to 1m30s)": {Phase: "draining",
			Connections: &left, Until: noon.Add(90 * time.Second)},
		"waiting for epoch 2 to finish draining (up to 0 s)": {Phase: "waiting for epoch 2 to " +
			"finish draining", Until: ago(time.Second)},
	} {
		var shown bytes.Buffer
		p := &progress{out: &shown, now: func() time.Time { return noon },
			begun: ago(5 * time.Second), last: last}
		p.show()
		if got := shown.String(); got != "\r\x1b[K"+want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
