package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
)

// draining returns the backend of an agent whose epochs 2 and 3 are draining.
func draining() *apitest.Backend {
	backend := &apitest.Backend{ReloadValue: api.ReloadResult{
		Outcome: api.OutcomeRestarted, PreviousEpoch: number(4), Epoch: number(5), StartMode: "hot-restart"}}
	backend.StatusValue.Epochs = []api.Epoch{
		{Number: 1, State: api.EpochExited}, {Number: 2, State: api.EpochDraining, Connections: 1},
		{Number: 3, State: api.EpochDraining}, {Number: 4, State: api.EpochLive, Connections: 9},
	}
	return backend
}

func TestReloadNow_AsksBeforeItEndsConnections(t *testing.T) {
	const costs = "epoch 2 still drains: --now ends 1 client connection\n" +
		"epoch 3 still drains: --now ends 0 client connections\n"
	for name, test := range map[string]struct {
		arguments, answer string
		code              int
		errors            string
		aborts            []int
	}{
		"without --now":  {"reload", "", api.ExitDone, "", nil},
		"yes":            {"reload --now", "y\n", api.ExitDone, costs + "Continue? [y/N] ", []int{2, 3}},
		"no":             {"reload --now", "\n", api.ExitRefused, "nothing was done", nil},
		"no answer":      {"reload --now", " ", api.ExitRefused, "nothing was done", nil},
		"a script":       {"reload --now", "", api.ExitUsage, "add --yes", nil},
		"a script, sure": {"reload --now --yes", "", api.ExitDone, costs, []int{2, 3}},
		"--yes alone":    {"reload --yes", "", api.ExitUsage, "--yes is for --now", nil},
		"Envoy":          {"envoy use 1.2.3 --now --yes", "", api.ExitDone, costs, []int{2, 3}},
		"Envoy, no": {"envoy use 1.2.3 --now", "n\n", api.ExitRefused, "nothing was done",
			nil},
	} {
		t.Run(name, func(t *testing.T) {
			backend := draining()
			m := newMachine(t, backend)
			m.install("1.2.3")
			m.install("1.2.4")
			m.outrider("envoy", "use", "1.2.4")
			before := len(backend.ReloadRequests())
			var out, errors bytes.Buffer
			a := m.app(&out, &errors)
			if test.answer != "" {
				a.in = strings.NewReader(test.answer)
			}
			code := a.run(t.Context(), strings.Fields(test.arguments))
			if code != test.code || !strings.Contains(errors.String(), test.errors) {
				t.Errorf("exit %d: %s%s", code, out.String(), errors.String())
			}
			reloads := backend.ReloadRequests()[before:]
			if (len(reloads) == 1) != (test.code == api.ExitDone) {
				t.Fatalf("reloads: %+v", reloads)
			}
			if len(reloads) == 1 && !slices.Equal(reloads[0].AbortEpochs, test.aborts) {
				t.Errorf("epochs %v are aborted", reloads[0].AbortEpochs)
			}
			if test.code != api.ExitDone && m.selected() != "1.2.4" {
				t.Errorf("Envoy %s is selected", m.selected())
			}
		})
	}
}

func TestProgress_SaysOnceWhatAnInterruptionDoes(t *testing.T) {
	var shown bytes.Buffer
	p := &progress{out: &shown, now: func() time.Time { return noon }, begun: noon,
		last: api.Progress{Phase: "reloading"}, hint: leaves("reload")}
	p.show()
	if strings.Contains(shown.String(), "^C") {
		t.Errorf("nothing is waited for: %q", shown.String())
	}
	p.report(api.Progress{Phase: "waiting for epoch 1", Until: noon.Add(time.Minute)})
	p.show()
	if got := shown.String(); strings.Count(got, "^C leaves the reload to the agent\n") != 1 {
		t.Errorf("%q", got)
	}
}
