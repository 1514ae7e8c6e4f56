package status

import (
	"net"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

func TestView_YieldsItsPort(t *testing.T) {
	port := parts.FreePort(t)
	view, board := startView(t, ViewConfig{Port: port}, &proxy{})
	address := view.Address()
	if got := view.Yield([]string{"/run/admin-0.sock", address}); got != address {
		t.Fatalf("it yields to %q", got)
	}
	taken, err := net.Listen("tcp", address) // at once
	if err != nil {
		t.Fatal(err)
	}
	other := parts.FreePort(t)
	if err := view.SetConfig(ViewConfig{Port: other}); err != nil ||
		view.Address() != viewAddress(other) {
		t.Errorf("another port: %v, %q", err, view.Address())
	}
	if err := view.SetConfig(ViewConfig{Port: port}); err != nil || view.Address() != "" {
		t.Errorf("the port that Envoy has: %v, %q", err, view.Address())
	}
	if conditions := board.Conditions(); len(conditions) > 0 {
		t.Errorf("%v", conditions)
	}
	if got := view.Yield(nil); got != "" {
		t.Errorf("it yields to %q", got)
	}
	eventually(t, "the view says that the port is not free yet",
		func() bool { return len(board.Conditions()) == 1 })
	_ = taken.Close()
	eventually(t, "the view is back",
		func() bool { return view.Address() == address && len(board.Conditions()) == 0 })
}

func TestView_YieldsBeforeItListens(t *testing.T) {
	port := parts.FreePort(t)
	view := NewView(ViewOptions{Config: ViewConfig{Port: port}, Proxy: &proxy{},
		Board: condition.NewBoard(), Logger: discard()})
	view.Yield([]string{viewAddress(port)})
	runPart(t, view.Run)
	<-view.Ready()
	if address := view.Address(); address != "" {
		t.Errorf("it listens on %s", address)
	}
	view.Yield(nil)
}
