package driver

import (
	"errors"
	"strings"
	"testing"

	"outrider.org/outrider/agent/epoch"
)

func TestReadiness(t *testing.T) {
	silent := errors.New("no answer")
	for name, test := range map[string]struct {
		state
		reason string // "": ready
	}{
		"it serves":             {state: state{ready: true}},
		"Envoy is not live yet": {state{says: "PRE_INITIALIZING"}, "PRE_INITIALIZING"},
		"it does not answer":    {state{err: silent}, "no answer"},
		"it is silent":          {state{epoch: epoch.Epoch{Silent: true}}, "does not answer"},
		"it is being replaced":  {state: state{err: silent, replaced: true}},
		"it has gone":           {state{err: silent, replaced: true, gone: true}, "replaced"},
		"it has lost its admin": {state: state{epoch: epoch.Epoch{AdminLost: true}}},
		"it has lost its admin, and drains": {state{epoch: epoch.Epoch{AdminLost: true,
			Drained: true}}, "drains"},
		"it drains":                     {state{epoch: epoch.Epoch{Drained: true}}, "drains"},
		"its listeners may have closed": {state{epoch: epoch.Epoch{AdminLost: true, MayRefuse: true}}, "may have closed"},
		"of the mesh nothing is served": {state{ready: true, mesh: "no listener"}, "no listener"},
		"a policy is bypassed, and it has lost its admin": {state{mesh: "STRICT",
			epoch: epoch.Epoch{AdminLost: true}}, "STRICT"},
	} {
		t.Run(name, func(t *testing.T) {
			ready, reason := test.readiness()
			if ready != (test.reason == "") || !ready && !strings.Contains(reason, test.reason) {
				t.Errorf("%t %q", ready, reason)
			}
		})
	}
}
