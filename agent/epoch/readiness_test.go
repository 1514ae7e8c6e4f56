package epoch

import (
	"errors"
	"strings"
	"testing"
)

func TestReadiness(t *testing.T) {
	silent := errors.New("no answer")
	for name, test := range map[string]struct {
		proxyState
		reason string // expected reason; "": the proxy is ready
	}{
		"it serves":             {proxyState: proxyState{ready: true}},
		"Envoy is not live yet": {proxyState{says: "PRE_INITIALIZING"}, "PRE_INITIALIZING"},
		"it does not answer":    {proxyState{err: silent}, "no answer"},
		"it is silent": {proxyState{epoch: Epoch{AdminUnresponsive: true}},
			"does not answer"},
		"it is being replaced":  {proxyState: proxyState{err: silent, replaced: true}},
		"it has gone":           {proxyState{err: silent, replaced: true, gone: true}, "replaced"},
		"it has lost its admin": {proxyState: proxyState{epoch: Epoch{AdminLost: true}}},
		"it has lost its admin, and drains": {proxyState{epoch: Epoch{AdminLost: true,
			DrainRequested: true}}, "drains"},
		"it drains": {proxyState{epoch: Epoch{DrainRequested: true}}, "drains"},
		"its listeners may have closed": {proxyState{epoch: Epoch{AdminLost: true,
			ListenersMaybeClosed: true}}, "may have closed"},
		"of the mesh nothing is served": {proxyState{ready: true, mesh: "no listener"}, "no listener"},
		"a policy is bypassed, and it has lost its admin": {proxyState{mesh: "STRICT",
			epoch: Epoch{AdminLost: true}}, "STRICT"},
	} {
		t.Run(name, func(t *testing.T) {
			ready, reason := test.readiness()
			if ready != (test.reason == "") || !ready && !strings.Contains(reason, test.reason) {
				t.Errorf("%t %q", ready, reason)
			}
		})
	}
}
