package xds

import (
	"net"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// moved returns a change that adds resources and removes the listener old.
func moved(old string, resources ...*resource.Resource) resource.Change {
	return resource.Change{Set: resources, Remove: []resource.Key{{Type: lds, Name: old}}}
}

// replace publishes a change that adds resources and removes the listener old.
func (p *table) replace(old string, resources ...*resource.Resource) {
	p.feed.Publish(moved(old, resources...))
	p.follow()
}

const taken = "Error adding/updating listener(s) new: cannot bind"

// TestRemoval_ListenerWaitsForItsReplacement replaces a listener by one that Envoy may refuse. The
// old listener is removed once Envoy accepts a replacement, and stays if the refused one is
// withdrawn.
func TestRemoval_ListenerWaitsForItsReplacement(t *testing.T) {
	bothModes(t, func(t *testing.T, delta bool) {
		sends := func(p *table, incremental, state string) {
			t.Helper()
			p.sends(map[bool]string{true: incremental, false: state}[delta])
		}
		start := func(t *testing.T) *table {
			p := newTable(t, delta)
			p.publish(made(lds, "old=\x01c"), made(lds, "other=1"), cluster("c=1"))
			p.ask(&request{typeURL: cds})
			p.ask(&request{typeURL: lds})
			p.sends("CDS c=1")
			p.ack(cds)
			p.sends("LDS old=\x01c other=1")
			p.ack(lds)
			p.replace("old", made(lds, "new=1"))
			sends(p, "LDS new=1", "LDS new=1 old=\x01c other=1")
			return p
		}
		t.Run("accepted", func(t *testing.T) {
			p := start(t)
			p.ack(lds)
			sends(p, "LDS -old", "LDS new=1 other=1 -old")
			p.ack(lds)
			p.sends()
		})
		t.Run("unanswered", func(t *testing.T) {
			p := start(t)
			p.now = p.now.Add(defaultTimeout)
			p.session.expire(p.now)
			p.sends()
			p.ack(lds)
			sends(p, "LDS -old", "LDS new=1 other=1 -old")
		})
		t.Run("refused and corrected", func(t *testing.T) {
			p := start(t)
			p.nack(lds, taken)
			p.sends()
			p.remove(cds, "c")
			p.sends() // the cluster is not removed yet, because the old listener may refer to it
			p.publish(made(lds, "new=2"))
			sends(p, "LDS new=2", "LDS new=2 old=\x01c other=1")
			p.ack(lds)
			sends(p, "LDS -old", "LDS new=2 other=1 -old")
			p.ack(lds)
			sends(p, "CDS -c", "CDS -c")
		})
		t.Run("refused and withdrawn", func(t *testing.T) {
			p := start(t)
			p.nack(lds, taken)
			p.remove(lds, "new")
			sends(p, "LDS -old", "LDS other=1 -old")
		})
		t.Run("refused and reverted", func(t *testing.T) {
			p := start(t)
			p.nack(lds, taken)
			p.replace("new", made(lds, "old=\x01c"))
			p.sends()
		})
		t.Run("reverted before it is refused", func(t *testing.T) {
			p := start(t)
			p.feed.Publish(moved("new", made(lds, "old=\x01c")))
			p.nack(lds, taken)
			p.sends()
		})
		t.Run("reverted and replaced again before it is refused", func(t *testing.T) {
			p := start(t)
			back := moved("new", made(lds, "old=\x01c"))
			p.feed.Publish(back)
			p.follow()
			p.feed.Publish(moved("old", made(lds, "new=1")))
			p.nack(lds, taken)
			sends(p, "LDS new=1", "LDS new=1 old=\x01c other=1")
			p.feed.Publish(back)
			p.feed.Publish(moved("old", made(lds, "new=1")))
			p.nack(lds, taken)
			p.sends()
		})
		t.Run("another one removed later", func(t *testing.T) {
			p := start(t)
			p.nack(lds, taken)
			p.remove(lds, "other")
			sends(p, "LDS -other", "LDS old=\x01c -other")
		})
	})
}

// TestRemoval_ListenerOfAnotherObject removes two listeners in the edit that adds a third, which
// Envoy refuses. The one that comes from another object than the refused one is removed
// immediately; the one from the same object stays.
func TestRemoval_ListenerOfAnotherObject(t *testing.T) {
	bothModes(t, func(t *testing.T, delta bool) {
		listener := func(name string, line int, gateway string) *resource.Resource {
			return resource.FromEncoded(lds, name, []byte("1"), resource.Origin{File: "gateways.yaml",
				Line: line, Kind: "Gateway", Namespace: "shop", Name: gateway})
		}
		p := newTable(t, delta)
		p.publish(listener("closed", 1, "a"), listener("moved", 9, "b"))
		p.ask(&request{typeURL: lds})
		p.sends("LDS closed=1 moved=1")
		p.ack(lds)
		p.feed.Publish(resource.Change{Set: []*resource.Resource{listener("new", 1, "b")},
			Remove: []resource.Key{{Type: lds, Name: "closed"}, {Type: lds, Name: "moved"}}})
		p.follow()
		p.sends(map[bool]string{true: "LDS new=1", false: "LDS closed=1 moved=1 new=1"}[delta])
		p.nack(lds, taken)
		p.sends(map[bool]string{true: "LDS -closed", false: "LDS moved=1 -closed"}[delta])
		if s, _ := p.feed.Current(); len(s.ByType(lds)) != 2 || !s.IsRetained(resource.Key{
			Type: lds, Name: "moved"}) {
			t.Errorf("new clients get %v", s.ByType(lds))
		}
	})
}

// TestRemoval_ListenerWithSameAddress replaces a listener by one with the same address. A single
// response adds the new one and removes the old one, because Envoy accepts no two listeners with
// one address.
func TestRemoval_ListenerWithSameAddress(t *testing.T) {
	bothModes(t, func(t *testing.T, delta bool) {
		listener := func(name string, port int) *resource.Resource {
			return encoded(t, name, &listenerv3.Listener{Name: name, Address: address(port)})
		}
		p := newTable(t, delta)
		p.publish(listener("old", 80), listener("moved", 81))
		p.ask(&request{typeURL: lds})
		first := p.session.next(p.now)
		p.ask(&request{typeURL: lds, nonce: first.nonce})
		p.feed.Publish(resource.Change{
			Set:    []*resource.Resource{listener("new", 80), listener("elsewhere", 82)},
			Remove: []resource.Key{{Type: lds, Name: "old"}, {Type: lds, Name: "moved"}}})
		p.follow()
		r := p.session.next(p.now)
		if r == nil || len(r.removed) != 1 || r.removed[0] != "old" {
			t.Fatalf("sent: %+v", r)
		}
		for _, one := range r.resources {
			if one.Name == "old" {
				t.Error("the old listener is in the response")
			}
		}
	})
}

// TestRefusal_PublishedAgainIsRetried withdraws a listener, and publishes it again before the
// session has processed the withdrawal. Although the client has refused the listener, it is sent
// again, because the publisher may not know of the refusal.
func TestRefusal_PublishedAgainIsRetried(t *testing.T) {
	p := newTable(t, true)
	p.publish(made(lds, "old=1"))
	p.ask(&request{typeURL: lds})
	p.sends("LDS old=1")
	p.ack(lds)
	p.replace("old", made(lds, "new=1"))
	p.sends("LDS new=1")
	withdraw := resource.Change{Set: []*resource.Resource{made(lds, "old=1")},
		Remove: []resource.Key{{Type: lds, Name: "new"}}}
	p.feed.Publish(withdraw)
	p.nack(lds, taken)
	p.saw("accepted LDS", "refused LDS [new]", "recovered LDS [new]")
	p.replace("old", made(lds, "new=1"))
	p.sends("LDS new=1")
	p.nack(lds, taken)
	p.saw("refused LDS [new]")
	p.sends()
	p.feed.Publish(withdraw)
	p.follow()
	p.sends()
	p.saw("recovered LDS [new]")
}

// TestRemoval_Envoy replaces a listener by one on a port that is in use, which Envoy refuses, and
// then by one with another name on the old port. Envoy serves the old port all the time.
func TestRemoval_Envoy(t *testing.T) {
	bothModes(t, func(t *testing.T, delta bool) {
		other, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Close() }()
		one, port := backend(t, "one"), parts.FreePort(t)
		feed, seen, socket := resource.NewFeed(), &recorder{}, socketPath(t)
		server, _ := serve(t, socket, Options{Source: oneFeed{feed}, Observer: seen})
		envoy := startEnvoy(t, "node", socket, delta)
		feed.Publish(resource.Change{Set: site(t, "a", port, one)})
		eventually(t, "the first answer", func() bool { return ask(port) == "one" })
		replace := func(old, name string, port int) {
			feed.Publish(resource.Change{Set: []*resource.Resource{encoded(t, name,
				httpListener(t, name, port, "a", name))},
				Remove: []resource.Key{{Type: resource.ListenerType, Name: old}}})
		}
		replace("a", "moved", other.Addr().(*net.TCPAddr).Port)
		eventually(t, "the refusal", func() (refused bool) {
			if got := ask(port); got != "one" {
				t.Fatalf("the old port: %s", got)
			}
			seen.with(func(r *recorder) { refused = len(r.refusals) > 0 })
			return refused
		})
		server.Status(t.Context()) // waits until the session has processed the refusal
		if got := ask(port); got != "one" {
			t.Errorf("the old port after the refusal: %s", got)
		}
		replace("moved", "renamed", port)
		eventually(t, "the renamed listener", func() bool {
			return ask(port) == "one" && envoy.Stat("http.renamed.downstream_rq_2xx") > 0
		})
		seen.with(func(r *recorder) {
			if len(r.refusals) > 1 {
				t.Errorf("refused: %+v", r.refusals)
			}
		})
	})
}
