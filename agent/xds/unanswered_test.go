package xds

import (
	"fmt"
	"strings"
	"testing"

	statusv3 "google.golang.org/genproto/googleapis/rpc/status"

	"outrider.org/outrider/agent/resource"
)

// each runs a test for clusters, of which a response of the state of the world has all, and for endpoints, of which none does.
func each(t *testing.T, test func(t *testing.T, p *pipeline)) {
	for _, typeURL := range []string{cds, eds} {
		t.Run(short(typeURL), func(t *testing.T) {
			both(t, func(t *testing.T, delta bool) { test(t, newPipeline(t, typeURL, delta)) })
		})
	}
}

// newPipeline is a client that took a=1, b=1 and c=1.
func newPipeline(t *testing.T, typeURL string, delta bool) *pipeline {
	p := &pipeline{table: newTable(t, delta), typeURL: typeURL, whole: typeURL == cds && !delta}
	p.put("a=1", "b=1", "c=1")
	p.ask(&request{typeURL: typeURL, subscribe: p.names(), names: p.names()})
	p.take(p.sent())
	p.events = nil
	return p
}

// pipeline is a client that is sent more before it has answered.
type pipeline struct {
	*table
	typeURL string
	whole   bool   // each response has everything
	version string // of the last response that it took
}

func (p *pipeline) names() []string {
	if p.typeURL == cds {
		return nil
	}
	return []string{"a", "b", "c"}
}

func (p *pipeline) put(contents ...string) {
	var all []*resource.Resource
	for _, one := range contents {
		all = append(all, made(p.typeURL, one))
	}
	p.publish(all...)
}

// sent is what goes out now.
func (p *pipeline) sent() *response {
	p.t.Helper()
	r := p.session.next(p.now)
	if r == nil {
		p.t.Fatal("nothing is sent")
	}
	return r
}

// unanswered is what goes out now, and is not answered in time.
func (p *pipeline) unanswered() *response {
	p.t.Helper()
	r := p.sent()
	p.tire()
	return r
}

func (p *table) tire() {
	p.now = p.now.Add(p.session.patience)
	p.session.expire(p.now)
}

func (p *pipeline) take(r *response) {
	p.version = r.version
	p.answer(r, nil)
}

func (p *pipeline) refuse(r *response, message string) {
	p.answer(r, &statusv3.Status{Code: 3, Message: message})
}

func (p *pipeline) answer(r *response, refusal *statusv3.Status) {
	p.ask(&request{typeURL: p.typeURL, nonce: r.nonce, version: p.version, refusal: refusal, names: p.names()})
}

// standsIn compares what a client gets first that has nothing.
func (p *pipeline) standsIn(want string) {
	p.t.Helper()
	next := p.another(p.session.delta)
	next.ask(&request{typeURL: p.typeURL, subscribe: p.names(), names: p.names()})
	if got, want := line(next.session.next(p.now)), short(p.typeURL)+" "+want; got != want {
		p.t.Errorf("a new client gets %q, want %q", got, want)
	}
}

// has compares what the session takes the client to have of a name.
func (p *pipeline) has(want string) {
	p.t.Helper()
	w := p.session.watches[p.typeURL]
	name, _, _ := strings.Cut(want, "=")
	if got := w.goesOn(name, p.session.get(w, name)); !same(got, made(p.typeURL, want)) {
		p.t.Errorf("has %s, want %s", got.Value(), want)
	}
}

const bIsBad = "Error adding/updating cluster(s) b: bad"

// The refusal of one version comes after the next went out, which is refused too.
func TestWhatWasRefusedLateNeverStandsIn(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2", "a=2")
		first := p.unanswered()
		p.put("b=3")
		second := p.sent()
		p.refuse(first, bIsBad)
		p.refuse(second, bIsBad)
		p.has("b=1")
		p.standsIn("a=2 b=1 c=1")
		p.take(p.sent()) // a, which may not have been taken with b
		p.sends()
		p.put("b=4", "c=2")
		p.refuse(p.sent(), bIsBad)
		p.standsIn("a=2 b=1 c=2")
		p.take(p.sent())
		p.events = nil
		p.put("b=5")
		p.take(p.sent())
		p.saw("accepted "+short(p.typeURL), "cured "+short(p.typeURL)+" [b]")
		p.standsIn("a=2 b=5 c=2")
	})
}

// As many versions go out as may be answered late, and all are refused.
func TestAChainOfRefusals(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		var all []*response
		for i := range maxLate {
			p.put(fmt.Sprintf("b=%d", 2+i))
			all = append(all, p.unanswered())
		}
		for _, r := range all {
			p.refuse(r, bIsBad)
		}
		p.has("b=1")
		p.standsIn("a=1 b=1 c=1")
	})
}

func TestWhatWasTakenLateStandsIn(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2")
		first := p.unanswered()
		p.put("b=3")
		second := p.unanswered()
		p.put("b=4")
		third := p.sent()
		p.take(first)
		p.refuse(second, bIsBad)
		p.refuse(third, bIsBad)
		p.has("b=2")
		p.standsIn("a=1 b=2 c=1")
	})
}

// The client has been sent something else in the place of what it refuses, and takes it.
func TestARefusalThatIsOutdated(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2", "c=2")
		first := p.unanswered()
		p.put("b=3")
		second := p.sent()
		p.refuse(first, bIsBad)
		p.standsIn("a=1 b=3 c=2") // which nobody has refused
		p.take(second)
		if p.whole { // the second has all that the first had
			p.saw("accepted CDS")
		} else {
			p.saw("refused "+short(p.typeURL)+" [b]", "accepted "+short(p.typeURL), "cured "+short(p.typeURL)+" [b]")
			r := p.sent() // c was refused with it, and is not to blame
			if got, want := line(r), short(p.typeURL)+" c=2"; got != want {
				t.Errorf("sent %q, want %q", got, want)
			}
			p.take(r)
		}
		p.has("b=3")
		p.has("c=2")
		p.sends()
		if w := p.session.watches[p.typeURL]; len(w.refused)+len(w.differs)+len(w.late)+len(w.unsure) > 0 {
			t.Errorf("left: %+v", w)
		}
	})
}

// Nobody says which it is about: those that are told anew are judged then.
func TestAnOutdatedRefusalThatNamesNothing(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2", "c=2")
		first := p.unanswered()
		p.put("b=3")
		second := p.sent()
		p.refuse(first, "bad")
		p.take(second)
		if !p.whole {
			p.saw("refused "+short(p.typeURL)+" [b c]", "cured "+short(p.typeURL)+" [b c]", "accepted "+short(p.typeURL))
			p.refuse(p.sent(), "bad")
			p.saw("refused " + short(p.typeURL) + " [c]")
			p.standsIn("a=1 b=3 c=1")
		}
		p.sends()
	})
}

// While a trial goes on for one late response, the answer to the next belongs to none of its rounds.
func TestATrialIsNotJudgedByOthers(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"), cluster("b=1"), cluster("c=1"))
	p.ask(&request{typeURL: cds})
	p.sends("CDS a=1 b=1 c=1")
	p.ack(cds)
	p.publish(cluster("a=2"), cluster("b=2"))
	p.sends("CDS a=2 b=2")
	first := p.last[cds].nonce
	p.tire()
	p.publish(cluster("c=2"))
	p.sends("CDS c=2")
	p.events = nil
	p.ask(&request{typeURL: cds, nonce: first, refusal: &statusv3.Status{Message: "bad"}})
	p.ack(cds)
	p.sends("CDS a=2")
	p.ack(cds)
	p.sends("CDS b=2")
	p.nack(cds, "bad")
	p.sends()
	p.saw("accepted CDS", "accepted CDS", "refused CDS [b]")
}

// What was refused has been taken back meanwhile: nothing is refused then.
func TestARefusalOfWhatWasTakenBack(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2")
		r := p.sent()
		p.put("b=1")
		p.refuse(r, bIsBad)
		p.saw("refused "+short(p.typeURL)+" [b]", "cured "+short(p.typeURL)+" [b]")
		if got, want := p.refusals[0].Kept[0], made(p.typeURL, "b=1").Version; got != want {
			t.Errorf("goes on: %q, want %q", got, want)
		}
		p.sends()
		p.standsIn("a=1 b=1 c=1")
	})
}

// A version that was refused before the newest came stands in for nothing: a new client gets what nobody has refused.
func TestANewerVersionIsNotStoodInFor(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2")
		r := p.sent()
		p.put("b=3")
		p.refuse(r, bIsBad)
		p.standsIn("a=1 b=3 c=1")
		p.refuse(p.sent(), bIsBad)
		p.standsIn("a=1 b=1 c=1")
		p.put("b=4")
		p.session.end() // it is gone before it is sent that
		p.standsIn("a=1 b=4 c=1")
		next := &pipeline{table: p.another(p.session.delta), typeURL: p.typeURL, whole: p.whole}
		next.ask(&request{typeURL: p.typeURL, subscribe: p.names(), names: p.names()})
		next.refuse(next.sent(), bIsBad)
		next.take(next.sent())
		next.has("b=1")
		next.sends()
	})
}

// A client that never answers counts as having what it was told, but that proves nothing. With state of the world it says with the next answer
// that it has none of it.
func TestWhatWasNeverAnsweredDoesNotStandIn(t *testing.T) {
	for _, unanswered := range []int{1, maxLate, maxLate + 5} {
		each(t, func(t *testing.T, p *pipeline) {
			for i := range unanswered {
				p.put(fmt.Sprintf("b=%d", 2+i), "c=2")
				p.unanswered()
			}
			p.put("b=0")
			p.refuse(p.sent(), bIsBad)
			if p.session.delta {
				p.has(fmt.Sprintf("b=%d", 1+unanswered))
			} else {
				p.has("b=1")
				p.take(p.sent()) // c, which it has not taken either
			}
			p.standsIn("a=1 b=1 c=2")
			p.sends()
			p.put("b=good")
			p.take(p.sent())
			p.put("b=bad")
			p.refuse(p.sent(), bIsBad)
			p.standsIn("a=1 b=good c=2")
			if w := p.session.watches[p.typeURL]; len(w.late) > 0 {
				t.Errorf("%d are waited for", len(w.late))
			}
		})
	}
}

// An Envoy that was busy answers several responses at once. The version says which of them it took.
func TestOneAnswerForSeveral(t *testing.T) {
	for _, typeURL := range []string{cds, eds} {
		p := newPipeline(t, typeURL, false)
		p.put("a=0")
		p.refuse(p.sent(), "bad")
		p.sends()
		p.events = nil
		var all []*response
		for i := range 4 {
			p.put("a=2", fmt.Sprintf("b=%d", 2+i), fmt.Sprintf("c=%d", 2+i%2))
			all = append(all, p.unanswered())
		}
		p.version = all[1].version
		p.refuse(all[3], bIsBad)
		if p.whole { // what cures a is in the second again
			p.saw("accepted CDS", "cured CDS [a]", "refused CDS [b]")
		} else {
			p.saw("accepted "+short(p.typeURL), "refused "+short(p.typeURL)+" [b]")
		}
		p.has("b=3")
		p.standsIn("a=2 b=3 c=3")
		if !p.whole { // c is as it was taken
			p.sends()
			continue
		}
		p.sends()
		p.put("b=6")
		p.unanswered()
		p.put("a=3")
		p.take(p.sent())
		p.has("b=6")
		p.saw("accepted CDS", "cured CDS [b]")
	}
}

func TestWhatIsRemovedWithoutAnAnswerDoesNotStandIn(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.remove(p.typeURL, "b")
		p.session.next(p.now) // endpoints of the state of the world have no word for it
		p.tire()
		p.put("b=2")
		p.refuse(p.sent(), bIsBad)
		p.standsIn("a=1 b=2 c=1")
	})
}
