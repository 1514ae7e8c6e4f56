package xds

import (
	"testing"

	"outrider.org/outrider/agent/resource"
)

const ecds = resource.ExtensionType

// accept checks that the responses in want are sent, accepts each, and checks that nothing else is
// sent.
func (p *table) accept(typeURL string, want ...string) {
	p.t.Helper()
	for _, one := range want {
		p.sends(one)
		p.ack(typeURL)
	}
	p.sends()
}

func TestExtension_OneByOne(t *testing.T) {
	p := newTable(t, true)
	p.publish(made(ecds, "a=1"), made(ecds, "b=1"))
	p.ask(&request{typeURL: ecds, subscribe: []string{"a", "b"}})
	for range 2 {
		r := p.session.next(p.now)
		if r == nil || len(r.resources) != 1 || p.session.next(p.now) != nil {
			t.Fatalf("%+v", r)
		}
		p.last[ecds] = r
		p.ack(ecds)
	}
	p.sends()
	p.ask(&request{typeURL: ecds, subscribe: []string{"none"}})
	p.accept(ecds, "ECDS -none")
}

// TestExtension_RefusedIsReplaced checks that, each time an extension is refused, its accepted
// version is sent or, without one, a removal.
func TestExtension_RefusedIsReplaced(t *testing.T) {
	p := newTable(t, true)
	p.publish(made(ecds, "a=1"))
	p.ask(&request{typeURL: ecds, subscribe: []string{"a"}})
	p.accept(ecds, "ECDS a=1")
	p.publish(made(ecds, "a=2"), made(ecds, "b=1"))
	p.sends("ECDS a=2")
	for range 2 {
		p.nack(ecds, "bad")
		p.accept(ecds, "ECDS a=1")
		p.feed.RetryRefused()
		p.follow()
		p.sends("ECDS a=2")
	}
	p.nack(ecds, "bad")
	p.sends("ECDS a=1")
	p.nack(ecds, "this, too")
	p.accept(ecds, "ECDS -a")
	p.publish(made(ecds, "a=3"))
	p.sends("ECDS a=3")
	p.ack(ecds)
	p.events = nil

	p.ask(&request{typeURL: ecds, subscribe: []string{"b"}})
	p.sends("ECDS b=1")
	p.publish(made(ecds, "b=2"))
	p.nack(ecds, "bad") // b=2 was published already, but is sent only after the removal
	p.sends("ECDS -b")
	p.ack(ecds)
	p.sends("ECDS b=2")
	p.nack(ecds, "bad")
	p.accept(ecds, "ECDS -b")
	p.saw("refused ECDS [b]", "accepted ECDS", "refused ECDS [b]", "accepted ECDS")

	// after a removal the session has nothing to send to the client, which drops the resources
	p.remove(ecds, "a", "b")
	p.sends()
	p.saw("recovered ECDS [b]")
	p.ask(&request{typeURL: ecds, unsubscribe: []string{"a", "b"}})
	if n := len(p.session.watches[ecds].differs); n != 0 {
		t.Errorf("%d differences left", n)
	}
}

// TestExtension_ListenersWait checks that listeners wait until an extension is acknowledged. If
// Envoy refuses both the extension and the listener, the listener is sent again after the accepted
// extension.
func TestExtension_ListenersWait(t *testing.T) {
	p := newTable(t, true)
	p.publish(made(ecds, "a=1"), made(lds, "l=1"))
	p.ask(&request{typeURL: lds})
	p.accept(lds, "LDS l=1")
	p.ask(&request{typeURL: ecds, subscribe: []string{"a"}})
	p.accept(ecds, "ECDS a=1")

	p.publish(made(ecds, "a=2"), made(lds, "l=2"))
	p.sends("ECDS a=2")
	p.nack(ecds, "bad")
	p.sends("ECDS a=1")
	p.ack(ecds)
	p.accept(lds, "LDS l=2")
	p.events = nil

	p.publish(made(ecds, "a=3"), made(lds, "l=3"))
	p.sends("ECDS a=3")
	p.now = p.now.Add(acknowledgeTime)
	p.sends("LDS l=3")
	p.nack(ecds, "bad")
	p.nack(lds, "l: bad")
	p.sends("ECDS a=1")
	p.ack(ecds)
	p.sends("LDS l=3")
	p.saw("refused ECDS [a]", "accepted ECDS")
	p.nack(lds, "l: bad")
	p.sends()
	p.saw("refused LDS [l]")
}

// TestExtension_RefusedBeforeReconnecting checks that a client that reconnects receives the
// accepted version of an extension again, because its stream may have ended between its refusal and
// the receipt of this version.
func TestExtension_RefusedBeforeReconnecting(t *testing.T) {
	p := newTable(t, true)
	p.publish(made(ecds, "a=1"))
	p.ask(&request{typeURL: ecds, subscribe: []string{"a"}})
	p.accept(ecds, "ECDS a=1")
	p.publish(made(ecds, "a=2"))
	p.sends("ECDS a=2")
	p.nack(ecds, "bad")

	again := newTable(t, true)
	again.feed, again.session.feed = p.feed, p.feed
	again.follow()
	again.ask(&request{typeURL: ecds, subscribe: []string{"a"},
		versions: map[string]string{"a": made(ecds, "a=1").Version}})
	again.accept(ecds, "ECDS a=1")

	// only the number of the accepted version is known, so it cannot be sent
	other := newTable(t, true)
	other.publish(made(ecds, "a=2"))
	other.ask(&request{typeURL: ecds, subscribe: []string{"a"},
		versions: map[string]string{"a": made(ecds, "a=1").Version}})
	other.sends("ECDS a=2")
	other.nack(ecds, "bad")
	other.sends()

	// no version was accepted, so the newest one is sent although another client refused it
	other = newTable(t, true)
	other.feed, other.session.feed = p.feed, p.feed
	p.publish(made(ecds, "b=1"))
	p.ask(&request{typeURL: ecds, subscribe: []string{"b"}})
	p.sends("ECDS a=1")
	p.ack(ecds)
	p.sends("ECDS b=1")
	p.nack(ecds, "bad")
	other.follow()
	other.ask(&request{typeURL: ecds, subscribe: []string{"b"}})
	other.sends("ECDS b=1")
	other.nack(ecds, "bad")
	other.accept(ecds, "ECDS -b")
}
