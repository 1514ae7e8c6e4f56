package xds

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/resource"
)

// another is the next client of the same feed.
func (p *table) another(delta bool) *table {
	next := newTable(p.t, delta)
	next.feed = p.feed
	next.session.feed = p.feed
	next.session.snapshot, _ = p.feed.Current()
	return next
}

// refusing is a client that took a=1 and b=1, and refuses b=2.
func refusing(t *testing.T, delta bool) *table {
	p := newTable(t, delta)
	p.publish(cluster("a=1"), cluster("b=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 b=1")
	p.ack(cds)
	p.publish(cluster("b=2"))
	p.sends(whole(delta, "CDS a=1 b=2", "CDS b=2"))
	p.nack(cds, "Error adding/updating cluster(s) b: bad")
	p.sends()
	p.events = nil
	return p
}

// whole is what is sent where responses of the state of the world carry all of it.
func whole(delta bool, all, changed string) string {
	if delta {
		return changed
	}
	return all
}

func both(t *testing.T, test func(t *testing.T, delta bool)) {
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprint("delta ", delta), func(t *testing.T) { test(t, delta) })
	}
}

func TestANewClientGetsWhatOthersGoOnWithBeforeTheNewest(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := refusing(t, delta)
		next := p.offered(delta)
		next.nack(cds, "Error adding/updating cluster(s) b: bad")
		next.sends()
		next.saw("accepted CDS", "refused CDS [b]")
		next.publish(cluster("a=2"))
		next.sends(whole(delta, "CDS a=2 b=1", "CDS a=2"))
		next.ack(cds)

		// The cure reaches both, and nothing stands in any more.
		p.follow()
		p.sends(whole(delta, "CDS a=2 b=1", "CDS a=2"))
		p.ack(cds)
		next.events, p.events = nil, nil
		next.publish(cluster("b=3"))
		p.follow()
		for _, client := range []*table{p, next} {
			client.sends(whole(delta, "CDS a=2 b=3", "CDS b=3"))
			client.ack(cds)
			client.saw("accepted CDS", "cured CDS [b]")
		}
		third := p.another(delta)
		third.ask(&request{typeURL: cds})
		third.sends("CDS a=2 b=3")
	})
}

// offered is a further client: it took what stands in, and was sent the newest after it.
func (p *table) offered(delta bool) *table {
	next := p.another(delta)
	next.ask(&request{typeURL: cds})
	next.sends("CDS a=1 b=1")
	next.ack(cds)
	next.sends(whole(delta, "CDS a=1 b=2", "CDS b=2"))
	return next
}

// That one takes what another refuses is no proof: an Envoy that drains takes any listener.
func TestOneClientTakesWhatAnotherRefuses(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := refusing(t, delta)
		for range 2 {
			next := p.offered(delta)
			next.ack(cds)
			next.session.end()
		}
	})
}

func TestAnotherClientTakesWhatOneRefused(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := refusing(t, delta)
		p.session.end()
		next := p.offered(delta)
		next.ack(cds)
		next.sends()
		third := p.another(delta)
		third.ask(&request{typeURL: cds})
		third.sends("CDS a=1 b=2")
		third.nack(cds, "Error adding/updating cluster(s) b: bad") // the other did not look, as one that drains
		third.sends("CDS a=1 b=1")
		third.ack(cds)
		third.sends()
	})
}

func TestWhatIsRefusedAndRemovedHasNoStandIn(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := refusing(t, delta)
		next := p.offered(delta)
		next.nack(cds, "Error adding/updating cluster(s) b: bad")
		next.remove(cds, "b")
		next.sends(whole(delta, "CDS a=1 -b", "CDS -b"))
		next.ack(cds)
		next.publish(cluster("b=4"))
		third := p.another(delta)
		third.ask(&request{typeURL: cds})
		third.sends("CDS a=1 b=4")
	})
}

// A client of another version may refuse both; neither is sent again then, until the newest is another.
func TestAClientRefusesTheStandInToo(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := refusing(t, delta)
		next := p.another(delta)
		next.ask(&request{typeURL: cds})
		next.client(map[string]bool{"b=1": true, "b=2": true})
		if w := next.session.watches[cds]; len(w.refused) != 1 || w.refused["b"].resource.Version != cluster("b=2").Version || w.trial != nil {
			t.Errorf("refused %+v, trial %v", w.refused, w.trial)
		}
		next.publish(cluster("b=3"))
		next.client(map[string]bool{"b=1": true, "b=3": true})
		next.events = nil
		next.publish(cluster("b=4"))
		next.client(map[string]bool{"b=1": true})
		next.saw("accepted CDS", "cured CDS [b]")
	})
}

// A client that was sent the newest before another refused it gets the stand-in after it has refused as well.
func TestAClientThatRefusesBeforeItHoldsAnything(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := newTable(t, delta)
		p.publish(cluster("a=1"), cluster("b=1"))
		p.ask(&request{typeURL: cds})
		p.sends("CDS a=1 b=1")
		p.ack(cds)
		p.publish(cluster("b=2"))
		p.sends(whole(delta, "CDS a=1 b=2", "CDS b=2"))
		next := p.another(delta)
		next.ask(&request{typeURL: cds})
		next.sends("CDS a=1 b=2")
		next.nack(cds, "Error adding/updating cluster(s) b: bad")
		next.sends("CDS a=1")
		next.ack(cds)
		next.events = nil
		p.nack(cds, "Error adding/updating cluster(s) b: bad")
		next.follow()
		next.sends(whole(delta, "CDS a=1 b=1", "CDS b=1"))
		next.ack(cds)
		next.sends()
		next.saw("accepted CDS")
		next.publish(cluster("b=1")) // taken back
		next.sends()
		next.saw("cured CDS [b]")
	})
}

func TestAReconnectedClientGetsWhatItLostAsOthersHaveIt(t *testing.T) {
	p := refusing(t, true)
	next := p.another(true)
	next.ask(&request{typeURL: cds, versions: map[string]string{"a": cluster("a=1").Version}})
	next.sends("CDS b=1")
	next.ack(cds)
	next.sends("CDS b=2")
}

func TestBadSecretsHaveNoStandIn(t *testing.T) {
	p := newTable(t, true)
	p.publish(made(resource.SecretType, "s=1"))
	p.ask(&request{typeURL: resource.SecretType, subscribe: []string{"s"}})
	p.sends("SDS s=1")
	p.ack(resource.SecretType)
	p.publish(made(resource.SecretType, "s=2"))
	p.sends("SDS s=2")
	p.nack(resource.SecretType, "its file is bad")
	if got := p.feed.StandIns(); got != nil {
		t.Errorf("%v", got)
	}
}

func TestWhichVersionGoesOn(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1")
	p.ack(cds)
	p.publish(cluster("a=2"), cluster("new=1"))
	p.sends("CDS a=2 new=1")
	p.nack(cds, "Error adding/updating cluster(s) a: bad, new: bad")
	if d := cmp.Diff([]string{cluster("a=1").Version, ""}, p.refusals[0].Kept); d != "" {
		t.Errorf("kept (-want +got):\n%s", d)
	}
}

// Clients come, go and refuse at random. Each is left at peace in the end, with the newest of all that it does not refuse, and with
// what stands in for the rest unless it refuses that too.
func TestRandomClients(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		delta := seed%2 == 0
		p := newTable(t, delta)
		p.publish(cluster("a=0"), cluster("b=0"), cluster("c=0"))
		type client struct {
			*table
			bad map[string]bool
		}
		var clients []client
		for range 30 {
			switch random.IntN(4) {
			case 0:
				next := client{p.another(delta), map[string]bool{}}
				for _, name := range "abc" {
					for content := range 6 {
						next.bad[fmt.Sprintf("%c=%d", name, content)] = random.IntN(3) == 0
					}
				}
				next.ask(&request{typeURL: cds})
				clients = append(clients, next)
			case 1:
				if len(clients) > 0 {
					i := random.IntN(len(clients))
					clients[i].session.end()
					clients = append(clients[:i], clients[i+1:]...)
				}
			default:
				name := string("abc"[random.IntN(3)])
				if random.IntN(6) == 0 {
					p.remove(cds, name)
				} else {
					p.publish(cluster(fmt.Sprintf("%s=%d", name, random.IntN(6))))
				}
			}
			for _, c := range clients {
				if random.IntN(2) == 0 {
					c.follow()
					c.table.client(c.bad)
				}
			}
		}
		for range 2 { // what one refuses last, another may lack
			for _, c := range clients {
				c.follow()
				c.table.client(c.bad)
			}
		}
		for i, c := range clients {
			w := c.session.watches[cds]
			for name, now := range c.session.snapshot.Set(cds) {
				d, differs := w.differs[name]
				in := p.feed.StandIn(now)
				switch {
				case !differs:
				case !c.bad[name+"="+string(now.Value())]:
					t.Errorf("seed %d: client %d has no %s=%s, which it takes", seed, i, name, now.Value())
				case d.held == nil && in != nil && !c.bad[name+"="+string(in.Value())]:
					t.Errorf("seed %d: client %d has nothing of %s, and %s stands in", seed, i, name, in.Value())
				}
			}
			c.session.end()
		}
		if t.Failed() {
			return
		}
	}
}

// What was refused is not the newest any more: who has nothing gets the newest, until that is refused too.
func TestNothingStandsInForWhatNobodyRefused(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := refusing(t, delta)
		p.publish(cluster("b=3"))
		next := p.another(delta)
		next.ask(&request{typeURL: cds})
		next.sends("CDS a=1 b=3")
		p.sends(whole(delta, "CDS a=1 b=3", "CDS b=3"))
		p.nack(cds, "Error adding/updating cluster(s) b: bad")
		third := p.another(delta)
		third.ask(&request{typeURL: cds})
		third.sends("CDS a=1 b=1")
	})
}
