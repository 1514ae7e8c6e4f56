package fdstore_test

import (
	"net"
	"os"
	"testing"

	"outrider.org/outrider/agent/fdstore"
	"outrider.org/outrider/agent/fdstore/fdstoretest"
)

func TestStore_KeepsSocketsByName(t *testing.T) {
	manager := fdstoretest.New(t)
	var sockets []*net.UDPConn
	for range 3 {
		socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = socket.Close() }()
		sockets = append(sockets, socket)
	}
	first := manager.StartService()
	for i, name := range []string{"a", "a", "b"} {
		if err := first.Add(name, sockets[i]); err != nil {
			t.Fatal(err)
		}
	}
	address := func(f *os.File) string {
		t.Helper()
		packets, err := net.FilePacketConn(f)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = packets.Close() }()
		return packets.LocalAddr().String()
	}
	second := manager.StartService()
	if a, b := manager.Count("a"), manager.Count("b"); a+b != 0 {
		t.Errorf("%d and %d of what was inherited are still stored", a, b)
	}
	taken := second.Take("a")
	if len(taken) != 2 || address(taken[0]) != sockets[0].LocalAddr().String() ||
		address(taken[1]) != sockets[1].LocalAddr().String() || len(second.Take("a")) != 0 {
		t.Errorf("%v", taken)
	}
	if err := second.CloseRemaining(); err != nil {
		t.Error(err)
	}
	if err := second.Add("a", sockets[0]); err != nil {
		t.Error(err)
	}
	if n := manager.Count("a"); n != 1 {
		t.Errorf("%d are stored again", n)
	}
	if err := second.Remove("a"); err != nil {
		t.Error(err)
	}
	if n := manager.Count("a"); n != 0 {
		t.Error("what was removed is still stored")
	}
}

// Without a service manager, nothing is stored and no method fails.
func TestStore_NilKeepsNothing(t *testing.T) {
	var s *fdstore.Store
	if err := s.Add("a", os.Stdin); err != nil {
		t.Error(err)
	}
	if s.Take("a") != nil || s.Remove("a") != nil || s.CloseRemaining() != nil {
		t.Error("not empty")
	}
}
