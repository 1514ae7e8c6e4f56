package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/resource"
)

func TestNamedInAnError(t *testing.T) {
	for _, test := range []struct {
		message string
		names   []string
		want    []string
	}{
		{"Error adding/updating cluster(s) a: no such thing, b.c|80: bad", []string{"a", "b", "b.c|80", "c"}, []string{"a", "b.c|80"}},
		{"Error adding/updating listener(s) 0.0.0.0_80: error\nother: bad\n", []string{"0.0.0.0_80", "0.0.0.0_8080", "other"}, []string{"0.0.0.0_80", "other"}},
		{`duplicate domain in route "r1"`, []string{"r", "r1"}, []string{"r1"}},
		{"Proto constraint validation failed (ListenerValidationError: bad)", []string{"bad", "validation", "Proto"}, nil},
		{"error", []string{"error", ""}, nil},
		{"", []string{"a"}, nil},
	} {
		if d := cmp.Diff(test.want, named(test.message, test.names)); d != "" {
			t.Errorf("%q (-want +got):\n%s", test.message, d)
		}
	}
}

func TestRefusedByNameTheRestIsSentAgain(t *testing.T) {
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
	p.publish(cluster("b=1")) // what it kept: nothing to send
	p.sends()
	p.saw("accepted CDS", "accepted CDS", "cured CDS [b]")
}

// What is told of a refusal is what Options.Words leave of it; the names that it gives count all the same.
func TestWordsOfARefusal(t *testing.T) {
	p := newTable(t, true)
	p.session.words = func(message string) string { return strings.ReplaceAll(message, "quoted", "…") }
	p.publish(cluster("a=1"), cluster("b=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 b=1")
	p.nack(cds, "Error adding/updating cluster(s) quoted, b: bad")
	p.saw("refused CDS [b]")
	if got, want := p.session.watches[cds].refused["b"].message, "Error adding/updating cluster(s) …, b: bad"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRefusedThenRemoved(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"), cluster("new=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 new=1")
	p.nack(cds, `"new" is bad`)
	p.sends("CDS a=1")
	p.ack(cds)
	p.events = nil
	p.remove(cds, "new") // the client never had it
	p.sends()
	p.saw("cured CDS [new]")
	if n := len(p.session.watches[cds].differs); n != 0 {
		t.Errorf("%d differences left", n)
	}
}

func TestRefusedInTheStateOfTheWorldIsSentAsItWas(t *testing.T) {
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

func TestRefusedOnlyTheFirstTimeAllAreNamed(t *testing.T) {
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

func TestARefusedListenerIsTriedAgainOnceASecretIsAnother(t *testing.T) {
	for _, delta := range []bool{true, false} {
		p := newTable(t, delta)
		p.publish(made(resource.SecretType, "s=1"), made(resource.SecretType, "t=1"), made(lds, "l=1"))
		p.ask(&request{typeURL: lds})
		p.ask(&request{typeURL: resource.SecretType, names: []string{"s"}, subscribe: []string{"s"}})
		p.sends("SDS s=1", "LDS l=1")
		p.ack(lds)
		p.ack(resource.SecretType, "s")
		p.publish(made(lds, "l=2"))
		p.sends("LDS l=2")
		p.nack(lds, "Error adding/updating listener(s) l: a certificate is not right")
		p.events = nil
		p.ask(&request{typeURL: resource.SecretType, names: []string{"s", "t"}, subscribe: []string{"t"}, nonce: p.last[resource.SecretType].nonce})
		p.sends("SDS t=1")
		p.ack(resource.SecretType, "s", "t")
		p.sends() // what it had of secrets is as it was
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
		p.saw("accepted LDS", "cured LDS [l]")
		p.sends()
	}
}

// client answers as an Envoy that refuses some contents, with a message that names nothing, until nothing is sent.
func (p *table) client(bad map[string]bool, names ...string) (rounds int) {
	for ; rounds < 200; rounds++ {
		var sent []*response
		for r := p.session.next(p.now); r != nil; r = p.session.next(p.now) {
			sent = append(sent, r)
		}
		if len(sent) == 0 {
			return rounds
		}
		for _, r := range sent {
			p.last[r.typeURL] = r
			if slices.ContainsFunc(r.resources, func(one *resource.Resource) bool { return bad[one.Name+"="+string(one.Value())] }) {
				p.nack(r.typeURL, "something is wrong", names...)
			} else {
				p.ack(r.typeURL, names...)
			}
		}
	}
	p.t.Fatal("it never ends")
	return rounds
}

func TestUnnamedRefusalIsFoundByHalves(t *testing.T) {
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprint("delta ", delta), func(t *testing.T) {
			p := newTable(t, delta)
			var first, second []*resource.Resource
			for i := range 1000 {
				first = append(first, cluster(fmt.Sprintf("c%03d=1", i)))
				second = append(second, cluster(fmt.Sprintf("c%03d=2", i)))
			}
			p.publish(first...)
			p.ask(&request{typeURL: cds})
			p.client(nil)
			p.events = nil
			p.publish(second...)
			rounds := p.client(map[string]bool{"c123=2": true, "c777=2": true})
			refusals := slices.DeleteFunc(p.events, func(e string) bool { return !strings.HasPrefix(e, "refused") })
			slices.Sort(refusals)
			if d := cmp.Diff([]string{"refused CDS [c123]", "refused CDS [c777]"}, refusals); d != "" {
				t.Errorf("refusals (-want +got):\n%s", d)
			}
			if w := p.session.watches[cds]; len(w.differs) != 2 || len(w.refused) != 2 || w.trial != nil {
				t.Errorf("%d differences, %d refused, trial %v", len(w.differs), len(w.refused), w.trial)
			}
			if rounds > 50 {
				t.Errorf("%d rounds", rounds)
			}
		})
	}
}

func TestEverythingRefusedEnds(t *testing.T) {
	p := newTable(t, true)
	bad := map[string]bool{}
	for i := range 500 {
		r := fmt.Sprintf("c%03d=1", i)
		bad[r] = true
		p.publish(cluster(r))
	}
	p.ask(&request{typeURL: cds})
	rounds := p.client(bad)
	if w := p.session.watches[cds]; rounds > 2*maxRounds || len(w.refused) != 500 {
		t.Errorf("%d rounds, %d refused", rounds, len(w.refused))
	}
}
