package envoy

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// Quotes of the configuration are removed however the lines are split into batches.
func TestLogForwarder_RedactsAcrossBatches(t *testing.T) {
	const prefix = "[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][main] "
	var out bytes.Buffer
	logs := NewLogForwarder(slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.DiscardHandler))
	for _, batch := range []LogBatch{
		{ID: "a", Lines: []string{prefix + "first: goo.gle/debugonly  ", "c {"}},
		{ID: "b", Lines: []string{"of another"}},
		{ID: "a", Lines: []string{"  hidden: 1"}},
		{ID: "a", Dropped: 7, Lines: []string{"  hidden: 2", "}", ": reason"}},
	} {
		logs.Forward(batch, true)
	}
	logs.Forward(LogBatch{ID: "a", Lines: []string{prefix + "off: goo.gle/debugonly  ", "c {"}}, false)
	logs.Forward(LogBatch{ID: "a", Lines: []string{"  hidden: 3", "}", ": on"}}, true)
	said := out.String()
	for _, want := range []string{"first:", "of another", "reason", "on"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if strings.Contains(said, "hidden") || strings.Contains(said, "off") {
		t.Errorf("told: %s", said)
	}
}

// Log lines that arrive after the exit of their Envoy are still redacted and filtered in the state
// that its earlier lines have left: within a quote, and after SIGTERM.
func TestLogForwarder_LinesAfterTheExit(t *testing.T) {
	const prefix = "[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][warning][main] "
	var out bytes.Buffer
	logs := NewLogForwarder(slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.DiscardHandler))
	logs.Forward(LogBatch{ID: "a", Lines: []string{prefix + "caught ENVOY_SIGTERM",
		prefix + "first: goo.gle/debugonly  ", "c {"}}, true)
	logs.EndEpochLog("a", 1)
	logs.Forward(LogBatch{ID: "a", Lines: []string{"  hidden: 1", "}", ": reason",
		prefix + "DeltaAggregatedResources gRPC config stream to xds-grpc closed: 13, reset"}}, true)
	if said := out.String(); strings.Contains(said, "hidden") || strings.Contains(said, "closed") ||
		!strings.Contains(said, "reason") {
		t.Errorf("logged: %s", said)
	}
	for _, id := range []string{"b", "c"} {
		logs.Forward(LogBatch{ID: id, Lines: []string{prefix + "line"}}, true)
		logs.EndEpochLog(id, 1)
	}
	if len(logs.readers) != 1 {
		t.Errorf("%d exited epochs are remembered", len(logs.readers))
	}
}
