package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/resource"
)

// client answers responses like an Envoy that refuses some contents with a message that names no
// resource, until the session sends no response any more. It returns the number of rounds.
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
			if slices.ContainsFunc(r.resources,
				func(one *resource.Resource) bool { return bad[one.Name+"="+string(one.EncodedMessage())] }) {
				p.nack(r.typeURL, "something is wrong", names...)
			} else {
				p.ack(r.typeURL, names...)
			}
		}
	}
	p.t.Fatal("it never ends")
	return rounds
}

func TestTrial_FindsRefusedResourceByHalves(t *testing.T) {
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
			refusals := slices.DeleteFunc(p.events,
				func(e string) bool { return !strings.HasPrefix(e, "refused") })
			slices.Sort(refusals)
			if d := cmp.Diff([]string{"refused CDS [c123]", "refused CDS [c777]"},
				refusals); d != "" {
				t.Errorf("refusals (-want +got):\n%s", d)
			}
			if w := p.session.watches[cds]; len(w.differs) != 2 || len(w.refused) != 2 ||
				w.trial != nil {
				t.Errorf("%d differences, %d refused, trial %v", len(w.differs), len(w.refused),
					w.trial)
			}
			if rounds > 50 {
				t.Errorf("%d rounds", rounds)
			}
		})
	}
}

func TestTrial_EndsIfEverythingIsRefused(t *testing.T) {
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
