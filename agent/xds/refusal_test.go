package xds

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/resource"
)

func TestNamed_FindsNamesInErrors(t *testing.T) {
	for _, test := range []struct {
		message string
		names   []string
		want    []string
	}{
		{"Error adding/updating cluster(s) a: no such thing, b.c|80: bad", []string{"a", "b",
			"b.c|80", "c"}, []string{"a", "b.c|80"}},
		{"Error adding/updating listener(s) 0.0.0.0_80: error\nother: bad\n", []string{"0.0.0.0_80",
			"0.0.0.0_8080", "other"}, []string{"0.0.0.0_80", "other"}},
		{`duplicate domain in route "r1"`, []string{"r", "r1"}, []string{"r1"}},
		{"Proto constraint validation failed (ListenerValidationError: bad)", []string{"bad",
			"validation", "Proto"}, nil},
		{"error", []string{"error", ""}, nil},
		{"", []string{"a"}, nil},
	} {
		if d := cmp.Diff(test.want, named(test.message, test.names)); d != "" {
			t.Errorf("%q (-want +got):\n%s", test.message, d)
		}
	}
}

func TestRefusal_NamedResourceIsIsolated(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"), cluster("b=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 b=1")
	p.ack(cds)
	p.publish(cluster("a=2"), cluster("b=2"), cluster("c=1"))
	p.sends("CDS a=2 b=2 c=1")
	p.nack(cds, "Error adding/updating cluster(s) b: bad")
	p.saw("accepted CDS", "refused CDS [b]")
	p.sends("CDS a=2 c=1")
	p.ack(cds)
	p.publish(cluster("b=2"), cluster("a=3"))
	p.sends("CDS a=3")
	p.ack(cds)
	p.publish(cluster("b=1")) // the client has this version, so nothing is sent
	p.sends()
	p.saw("accepted CDS", "accepted CDS", "recovered CDS [b]")
}

// TestRefusal_RedactsMessage checks that Options.Redact changes the reported message, while names
// are found in the original message.
func TestRefusal_RedactsMessage(t *testing.T) {
	p := newTable(t, true)
	p.session.redactor = func(message string) string {
		return strings.ReplaceAll(message, "quoted",
			"…")
	}
	p.publish(cluster("a=1"), cluster("b=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 b=1")
	p.nack(cds, "Error adding/updating cluster(s) quoted, b: bad")
	p.saw("refused CDS [b]")
	if got, want := p.session.watches[cds].refused["b"].message,
		"Error adding/updating cluster(s) …, b: bad"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRefusal_ThenRemoved(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"), cluster("new=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 new=1")
	p.nack(cds, `"new" is bad`)
	p.sends("CDS a=1")
	p.ack(cds)
	p.events = nil
	p.remove(cds, "new") // the client never accepted the resource, so no removal is sent
	p.sends()
	p.saw("recovered CDS [new]")
	if n := len(p.session.watches[cds].differs); n != 0 {
		t.Errorf("%d differences left", n)
	}
}

func TestRefusal_StateOfTheWorldSendsAcceptedVersion(t *testing.T) {
	p := newTable(t, false)
	p.publish(cluster("a=1"), cluster("b=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 b=1")
	p.ack(cds)
	p.publish(cluster("a=2"), cluster("b=2"), cluster("c=1"))
	p.sends("CDS a=2 b=2 c=1")
	p.nack(cds, "Error adding/updating cluster(s) b: bad, c: bad")
	p.sends("CDS a=2 b=1")
	p.ack(cds)
	p.publish(cluster("a=3"))
	p.sends("CDS a=3 b=1")
	p.ack(cds)
	p.remove(cds, "b")
	p.sends("CDS a=3 -b")
	p.ack(cds)
	p.publish(cluster("c=2"))
	p.sends("CDS a=3 c=2")
}

func TestRefusal_OnlyFirstTimeNamesAll(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"), cluster("b=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 b=1")
	p.nack(cds, "something is wrong")
	p.sends("CDS a=1")
	p.ack(cds)
	p.sends("CDS b=1")
	p.ack(cds)
	p.saw("accepted CDS", "accepted CDS", "refused CDS [a b]")
}

func TestRefusal_ListenerRetriedAfterSecretChange(t *testing.T) {
	for _, delta := range []bool{true, false} {
		p := newTable(t, delta)
		p.publish(made(resource.SecretType, "s=1"), made(resource.SecretType, "t=1"),
			made(lds, "l=1"))
		p.ask(&request{typeURL: lds})
		p.ask(&request{typeURL: resource.SecretType, names: []string{"s"},
			subscribe: []string{"s"}})
		p.sends("SDS s=1", "LDS l=1")
		p.ack(lds)
		p.ack(resource.SecretType, "s")
		p.publish(made(lds, "l=2"))
		p.sends("LDS l=2")
		p.nack(lds, "Error adding/updating listener(s) l: a certificate is not right")
		p.events = nil
		p.ask(&request{typeURL: resource.SecretType, names: []string{"s", "t"},
			subscribe: []string{"t"}, nonce: p.last[resource.SecretType].nonce})
		p.sends("SDS t=1")
		p.ack(resource.SecretType, "s", "t")
		// no secret that the client had before has changed, so the refused listener is not sent
		// again
		p.sends()
		p.publish(made(resource.SecretType, "s=2"))
		p.sends("SDS s=2")
		p.ack(resource.SecretType, "s", "t")
		p.sends("LDS l=2")
		p.nack(lds, "Error adding/updating listener(s) l: still not right")
		p.sends()
		p.publish(made(resource.SecretType, "s=3"))
		p.sends("SDS s=3")
		p.ack(resource.SecretType, "s", "t")
		p.sends("LDS l=2")
		p.events = nil
		p.ack(lds)
		p.saw("accepted LDS", "recovered LDS [l]")
		p.sends()
	}
}

// whole returns all for state-of-the-world xDS, where a response has all resources, and changed for
// incremental xDS.
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

func TestRefusal_NamesVersions(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1")
	p.ack(cds)
	p.publish(cluster("a=2"), cluster("new=1"))
	p.sends("CDS a=2 new=1")
	p.nack(cds, "Error adding/updating cluster(s) a: bad, new: bad")
	want := []string{cluster("a=1").Version, ""}
	if d := cmp.Diff(want, p.refusals[0].VersionsInUse); d != "" {
		t.Errorf("accepted versions (-want +got):\n%s", d)
	}
	refused := []string{cluster("a=2").Version, cluster("new=1").Version}
	if d := cmp.Diff(refused, p.refusals[0].Versions); d != "" {
		t.Errorf("refused (-want +got):\n%s", d)
	}
}

// TestRefusal_EndsWithRevert checks that a refusal ends when the resource is reverted to the
// version that the client uses.
func TestRefusal_EndsWithRevert(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := newTable(t, delta)
		p.publish(cluster("a=1"), cluster("b=1"))
		p.ask(&request{typeURL: cds})
		p.sends("CDS a=1 b=1")
		p.ack(cds)
		p.publish(cluster("b=2"))
		p.sends(whole(delta, "CDS a=1 b=2", "CDS b=2"))
		p.nack(cds, bIsBad)
		p.publish(cluster("b=1"))
		p.sends()
		p.saw("accepted CDS", "refused CDS [b]", "recovered CDS [b]")
		// the refused version is sent again after the revert
		p.publish(cluster("b=2"))
		p.sends(whole(delta, "CDS a=1 b=2", "CDS b=2"))
		p.ack(cds)
		p.sends()
	})
}

// TestRefusal_RandomClients connects and disconnects clients that refuse random versions. At the
// end each client must have the newest version that it does not refuse, or the last accepted one.
// It must not lack a resource that it had before.
func TestRefusal_RandomClients(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		delta := seed%2 == 0
		feed := newTable(t, delta)
		feed.publish(cluster("a=0"), cluster("b=0"), cluster("c=0"))
		type client struct {
			*table
			bad map[string]bool
		}
		var clients []client
		for range 30 {
			switch random.IntN(4) {
			case 0:
				next := client{feed.another(delta), map[string]bool{}}
				for _, name := range "abc" {
					for content := range 6 {
						next.bad[fmt.Sprintf("%c=%d", name, content)] = random.IntN(3) == 0
					}
				}
				next.ask(&request{typeURL: cds})
				clients = append(clients, next)
			case 1:
				if len(clients) > 0 {
					clients = slices.Delete(clients, 0, 1)
				}
			default:
				name := string("abc"[random.IntN(3)])
				if random.IntN(6) == 0 {
					feed.remove(cds, name)
				} else {
					feed.publish(cluster(fmt.Sprintf("%s=%d", name, random.IntN(6))))
				}
			}
			for _, c := range clients {
				if random.IntN(2) == 0 {
					c.follow()
					c.client(c.bad)
				}
			}
		}
		for i, c := range clients {
			c.follow()
			c.client(c.bad)
			w := c.session.watches[cds]
			for name, now := range c.session.snapshot.ByType(cds) {
				// a client that connects later may begin with the last accepted version, if all
				// others refused the newest one
				inherited := w.refused[name] != nil && w.refused[name].inherited
				if _, differs := w.differs[name]; differs != (inherited ||
					c.bad[name+"="+string(now.EncodedMessage())]) {
					t.Fatalf("seed %d: client %d: %s=%s differs: %v", seed, i, name, now.EncodedMessage(),
						differs)
				}
			}
		}
	}
}

// another returns a table for another client of the same feed.
func (p *table) another(delta bool) *table {
	next := newTable(p.t, delta)
	next.feed = p.feed
	next.session.feed = p.feed
	next.session.client.Proxy = fmt.Sprint(rand.Uint64())
	next.session.snapshot, _ = p.feed.Current()
	return next
}
