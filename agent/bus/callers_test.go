package bus

import (
	"fmt"
	"testing"

	"github.com/godbus/dbus/v5"
)

// idleSession returns a session that admits calls but does not serve them.
func idleSession(t *testing.T) *session {
	t.Helper()
	all, err := readInterfaces()
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent()
	return newSession(Options{Backend: a, Conditions: a.board}, all)
}

// callOf returns a call from sender that expects a reply.
func callOf(sender string) *dbus.Message {
	message := callTo(managerPath, peerName, "Ping")
	message.Flags = 0
	message.Headers[dbus.FieldSender] = dbus.MakeVariant(sender)
	return message
}

// Eight busy connections of one user exhaust only that user's limit.
func TestTake_LimitsCallsPerUser(t *testing.T) {
	s := idleSession(t)
	for sender, uid := range map[string]uint32{":root": 0, ":other": 1} {
		s.callers.learn(sender, uid)
	}
	for connection := range 8 {
		sender := fmt.Sprintf(":nobody.%d", connection)
		s.callers.learn(sender, nobody)
		for range 32 {
			s.take(callOf(sender))
		}
	}
	if admitted, refused := len(s.queue),
		len(s.refused); admitted != mostCallsOfUser || refused != mostRefusals {
		t.Fatalf("%d calls of nobody wait, %d are refused", admitted, refused)
	}
	s.take(callOf(":root"))
	s.take(callOf(":other"))
	if len(s.rootQueue) != 1 || len(s.queue) != mostCallsOfUser+1 {
		t.Errorf("waiting are %d of root, %d of others", len(s.rootQueue),
			len(s.queue)-mostCallsOfUser)
	}
	for range mostOfSender {
		s.take(callOf(":root"))
	}
	if len(s.rootQueue) != mostOfSender {
		t.Errorf("%d calls of one connection of root's wait", len(s.rootQueue))
	}
}

// Calls from connections without a known user are queued, with a limit per connection.
func TestTake_KeepsCallsOfUnknownConnections(t *testing.T) {
	s := idleSession(t)
	for range 100 {
		s.take(callOf(":hasty"))
	}
	for connection := range mostUnknown - 2 {
		s.take(callOf(fmt.Sprintf(":nobody.%d", connection)))
	}
	if kept := s.callers.size; kept != mostEarly+mostUnknown-2 ||
		len(s.callers.asking) != mostUnknown-1 {
		t.Fatalf("%d calls of %d connections are kept", kept, len(s.callers.asking))
	}
	s.take(callOf(":root"))
	s.take(callOf(":late"))
	for _, c := range s.callers.learn(":root", 0) {
		s.admit(c)
	}
	if len(s.rootQueue) != 1 || len(s.queue) != 0 || len(s.callers.early[":late"]) != 0 {
		t.Errorf("waiting are %d of root, %d of others", len(s.rootQueue), len(s.queue))
	}
	for sender := range s.callers.early {
		s.callers.learn(sender, nobody)
	}
	if s.callers.size != 0 || len(s.callers.early) != 0 {
		t.Errorf("%d calls are left behind", s.callers.size)
	}
	for connection := range 2 * mostKnown {
		s.callers.learn(fmt.Sprintf(":once.%d", connection), nobody)
	}
	if known := len(s.callers.known); known > mostKnown {
		t.Errorf("%d connections are remembered", known)
	}
}
