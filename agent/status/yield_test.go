package status

import (
	"net"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/epoch/record"
	"outrider.org/outrider/scripts/parts"
)

func TestView_YieldsItsPort(t *testing.T) {
	port := parts.FreePort(t)
	view, board := startView(t, AdminViewConfig{Port: port}, &proxy{})
	address := view.ListenAddress()
	view.YieldPort(1, address)
	reserved, err := net.Listen("tcp", address) // YieldPort has released the port
	if err != nil {
		t.Fatal(err)
	}
	other := parts.FreePort(t)
	if err := view.Configure(AdminViewConfig{Port: other}); err != nil ||
		view.ListenAddress() != viewAddress(other) {
		t.Errorf("another port: %v, %q", err, view.ListenAddress())
	}
	if err := view.Configure(AdminViewConfig{Port: port}); err != nil ||
		view.ListenAddress() != "" {
		t.Errorf("the port that Envoy has: %v, %q", err, view.ListenAddress())
	}
	if conditions := board.Conditions(); len(conditions) > 0 {
		t.Errorf("%v", conditions)
	}
	view.ReclaimPort(1)
	eventually(t, "a condition that the port is not free",
		func() bool { return len(board.Conditions()) == 1 })
	_ = reserved.Close()
	eventually(t, "the view listens again",
		func() bool { return view.ListenAddress() == address && len(board.Conditions()) == 0 })
}

func TestView_YieldsBeforeItListens(t *testing.T) {
	port := parts.FreePort(t)
	live := record.Epoch{State: record.StateLive, AdminAddress: viewAddress(port)}
	view, _ := startViewOf(t, AdminViewConfig{Port: port}, &proxy{},
		&epochs{all: []record.Epoch{live}})
	if address := view.ListenAddress(); address != "" {
		t.Errorf("it listens on %s", address)
	}
}

func TestView_YieldsToEnvoysOwnAdmin(t *testing.T) {
	const socket = "/run/admin-1.sock"
	own := parts.FreePort(t)
	port := viewAddress(own)
	one := func(state record.State, address string) record.Epoch {
		return record.Epoch{State: state, AdminAddress: address}
	}
	all := &epochs{}
	board := condition.NewRegistry()
	view := NewAdminView(AdminViewOptions{Config: AdminViewConfig{Port: own}, Proxy: &proxy{},
		Epochs:     all,
		Conditions: board, Logger: discard()})
	runPart(t, view.Run)
	<-view.Ready()
	for _, step := range []struct {
		what    string
		do      func()
		epochs  []record.Epoch
		yields  bool
		present bool // the condition admin-view-yields is active
	}{
		{what: "no epoch"},
		{what: "a reload that will be refused", do: func() { view.YieldPort(1, port) },
			yields: true},
		{what: "it is refused", do: func() { view.ReclaimPort(1) }},
		{what: "a reload", do: func() { view.YieldPort(2, port) },
			epochs: []record.Epoch{one(record.StateLive, socket)}, yields: true},
		{what: "its epoch starts", epochs: []record.Epoch{one(record.StateLive, socket),
			one(record.StateStarting, port)}, yields: true},
		{what: "it is live", epochs: []record.Epoch{one(record.StateDraining, socket),
			one(record.StateLive, port)}, yields: true, present: true},
		{what: "the reload has ended", do: func() { view.ReclaimPort(2) },
			epochs: []record.Epoch{one(record.StateLive, port)}, yields: true, present: true},
		{what: "Envoy crashed and will be restarted",
			epochs: []record.Epoch{one(record.StateExited, port)}, yields: true, present: true},
		{what: "it starts", epochs: []record.Epoch{one(record.StateStarting, port)}, yields: true,
			present: true},
		{what: "a reload to another address", do: func() { view.YieldPort(3, socket) },
			epochs: []record.Epoch{one(record.StateLive, port)}, yields: true, present: true},
		{what: "its epoch starts while the old one serves",
			epochs: []record.Epoch{one(record.StateLive,
				port), one(record.StateStarting, socket)}, yields: true, present: true},
		{what: "it is live", epochs: []record.Epoch{one(record.StateDraining, port),
			one(record.StateLive, socket)}},
		{what: "an epoch with the port starts",
			epochs: []record.Epoch{one(record.StateLive, socket),
				one(record.StateStarting, port)}, yields: true},
		{what: "it has failed", epochs: []record.Epoch{one(record.StateLive, socket),
			one(record.StateExited, port)}},
	} {
		if step.epochs != nil {
			all.set(step.epochs...)
		}
		if step.do != nil {
			step.do()
		}
		eventually(t, step.what, func() bool {
			return (view.ListenAddress() == "") == step.yields &&
				(len(board.Conditions()) == 1) == step.present
		})
	}
}
