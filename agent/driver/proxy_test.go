package driver

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/epoch"
)

func TestProxy_ReadinessWithoutRequest(t *testing.T) {
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
			ready, reason, known := readyWithoutRequest(test.epoch)
			if ready != test.ready || known != test.known || !strings.Contains(reason,
				test.reason) || (reason == "") != (test.reason == "") {
				t.Errorf("%t %q %t", ready, reason, known)
			}
		})
	}
}
