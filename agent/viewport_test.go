package agent

import (
	"slices"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/epoch"
)

func TestViewPort_YieldsToEnvoysOwnAdmin(t *testing.T) {
	const port, socket = "127.0.0.1:15000", "/run/admin-1.sock"
	wants := func(address string) *epoch.Spec {
		return &epoch.Spec{AdminAddress: func(epoch.Launch) string { return address }}
	}
	one := func(state epoch.State, address string) epoch.Epoch {
		return epoch.Epoch{State: state, AdminAddress: address}
	}
	var epochs []epoch.Epoch
	yields := false
	board := condition.NewBoard()
	p := &viewPort{board: board, held: map[uint64]string{},
		epochs: func() []epoch.Epoch { return epochs },
		yield: func(taken []string) string {
			if yields = slices.Contains(taken, port); yields {
				return port
			}
			return ""
		}}
	for _, step := range []struct {
		what    string
		do      func()
		epochs  []epoch.Epoch
		yields  bool
		present bool // the condition
	}{
		{what: "nothing runs"},
		{what: "a reload that will be refused", do: func() { p.hold(1, wants(port)) },
			yields: true},
		{what: "it is refused", do: func() { p.over(1) }},
		{what: "a reload", do: func() { p.hold(2, wants(port)) },
			epochs: []epoch.Epoch{one(epoch.Live, socket)}, yields: true},
		{what: "its epoch starts", epochs: []epoch.Epoch{one(epoch.Live, socket),
			one(epoch.Starting, port)}, yields: true},
		{what: "it is live", epochs: []epoch.Epoch{one(epoch.Draining, socket),
			one(epoch.Live, port)}, yields: true, present: true},
		{what: "the reload is over", do: func() { p.over(2) },
			epochs: []epoch.Epoch{one(epoch.Live, port)}, yields: true, present: true},
		{what: "Envoy died, and is about to be started again",
			epochs: []epoch.Epoch{one(epoch.Exited, port)}, yields: true, present: true},
		{what: "it starts", epochs: []epoch.Epoch{one(epoch.Starting, port)}, yields: true,
			present: true},
		{what: "a reload to another address", do: func() { p.hold(3, wants(socket)) },
			epochs: []epoch.Epoch{one(epoch.Live, port)}, yields: true, present: true},
		{what: "its epoch starts, and the old one serves", epochs: []epoch.Epoch{one(epoch.Live,
			port), one(epoch.Starting, socket)}, yields: true, present: true},
		{what: "it is live", epochs: []epoch.Epoch{one(epoch.Draining, port),
			one(epoch.Live, socket)}},
		{what: "an epoch with the port fails", epochs: []epoch.Epoch{one(epoch.Live, socket),
			one(epoch.Starting, port)}, yields: true},
		{what: "it has failed", epochs: []epoch.Epoch{one(epoch.Live, socket),
			one(epoch.Exited, port)}},
	} {
		if step.epochs != nil {
			epochs = step.epochs
		}
		if step.do != nil {
			step.do()
		}
		p.update()
		if present := len(board.Conditions()) == 1; yields != step.yields ||
			present != step.present {
			t.Errorf("%s: yields %t, says so %t", step.what, yields, present)
		}
	}
}
