package agent

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/epoch"
)

func TestReadinessThatIsKnownWithoutAsking(t *testing.T) {
	for name, test := range map[string]struct {
		epoch        epoch.Epoch
		ready, known bool
		reason       string
	}{
		"it serves":             {},
		"it has lost its admin": {epoch: epoch.Epoch{AdminLost: true}, ready: true, known: true},
		"it has lost its admin, and drains": {epoch: epoch.Epoch{AdminLost: true, Drained: true},
			known: true, reason: "drains"},
		"it drains": {epoch: epoch.Epoch{Drained: true}, known: true, reason: "drains"},
		"its listeners may have closed": {epoch: epoch.Epoch{AdminLost: true, MayRefuse: true},
			known: true, reason: "may have closed"},
		"it is silent": {epoch: epoch.Epoch{Silent: true}, known: true, reason: "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			ready, reason, known := readyUnasked(test.epoch)
			if ready != test.ready || known != test.known || !strings.Contains(reason,
				test.reason) || (reason == "") != (test.reason == "") {
				t.Errorf("%t %q %t", ready, reason, known)
			}
		})
	}
}

func TestWhatTheManagerIsToldOfTheLiveEpoch(t *testing.T) {
	for want, live := range map[string]epoch.Epoch{
		"epoch 3 serves":            {Number: 3, Awaits: "waiting for epoch 2"},
		"epoch 3 drains on request": {Number: 3, Drained: true},
		"epoch 3 drains until the undrain is done: waiting for epoch 2": {Number: 3, Drained: true,
			Awaits: "waiting for epoch 2"},
	} {
		if got := doing(live); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
