package systemtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

// Of many reloads every other one has a broken configuration. Good ones start an epoch. Broken ones
// fail, and the journal and the unit's status name file, line and key. No request is lost.
func TestReloadsInARow(t *testing.T) {
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	running := h.StartLoad(0.25)
	times := 10
	if full() {
		times = 50
	}
	broken := []struct{ text, line, key string }{
		{"[envoy]\nconcurrency = \"many\"\n", "2", "concurrency"},
		{"[envoy]\n\ndrain_duration = \"soon\"\n", "3", "drain_duration"},
		{"[status]\nnonsense = 1\n", "2", "nonsense"},
		{"\n[envoy]\nconcurrency = 2\nconcurrency = 3\n", "4", "concurrency"},
		{"[telemetry]\nprometheus_address = \"nowhere\"\n", "2", "prometheus_address"},
	}
	epoch := h.LiveEpoch()
	for i := range times {
		began := time.Now()
		if i%2 == 0 {
			running.Mark(fmt.Sprintf("reload %d", i))
			h.MustRun(t, "systemctl", "reload", "outrider.service")
			live := h.LiveEpoch()
			if live.Number != epoch.Number+1 || live.PID == epoch.PID {
				t.Errorf("reload %d: epoch %d (pid %d) became %d (pid %d)", i, epoch.Number,
					epoch.PID, live.Number, live.PID)
			}
			epoch = live
			t.Logf("reload %d: epoch %d after %v", i, live.Number,
				time.Since(began).Round(time.Millisecond))
			continue
		}
		fault := broken[i/2%len(broken)]
		path := fmt.Sprintf("/etc/outrider/conf.d/50-broken-%d.toml", i)
		running.Mark(fmt.Sprintf("broken reload %d", i))
		h.WriteText(path, fault.text)
		if out, err := h.Run(t.Context(), "systemctl", "reload", "outrider.service"); err == nil {
			t.Errorf("reload %d: %q is taken: %s", i, fault.text, out)
		}
		for who, says := range map[string]func() string{
			// This does not use journalctl --grep, which fails if nothing matches.
			"the journal": func() string {
				lines := strings.Split(h.Journal("-o", "cat", "-u", "outrider.service", "-p",
					"err"), "\n")
				return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
					return !strings.Contains(line, path)
				}), "\n")
			},
			"STATUS": func() string { return h.Property("outrider", "StatusText") },
		} {
			h.Eventually(time.Minute,
				fmt.Sprintf("%s tells file, line and key of broken reload %d", who, i),
				func() bool {
					text := says()
					return strings.Contains(text, path+":"+fault.line) &&
						strings.Contains(text, fault.key)
				})
		}
		h.MustRun(t, "rm", path)
		if live := h.LiveEpoch(); live.PID != epoch.PID {
			t.Errorf("reload %d was refused, and Envoy %d became %d", i, epoch.PID, live.PID)
		}
		h.MustServe()
	}
	// The agent notices by itself that the last broken file was removed.
	h.Eventually(time.Minute, "the agent has come to rest",
		func() bool { return h.Property("outrider", "ActiveState") == "active" })
	if restarts := h.Property("outrider", "NRestarts"); restarts != "0" {
		t.Errorf("the agent was restarted %s times", restarts)
	}
	report := running.Stop()
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("lost of %d requests: %v; marks %v", report.Total, lost, report.Marks)
	}
	t.Logf("%d reloads; %d requests, %d lost", times, report.Total, report.Lost)
}
