package xds

import (
	"fmt"
	"strings"
	"testing"

	statusv3 "google.golang.org/genproto/googleapis/rpc/status"

	"outrider.org/outrider/agent/resource"
)

// each runs a test twice: for clusters, whose state-of-the-world responses contain all resources,
// and for endpoints, whose responses do not.
func each(t *testing.T, test func(t *testing.T, p *pipeline)) {
	for _, typeURL := range []string{cds, eds} {
		t.Run(short(typeURL), func(t *testing.T) {
			both(t, func(t *testing.T, delta bool) { test(t, newPipeline(t, typeURL, delta)) })
		})
	}
}

// newPipeline returns a client that has accepted a=1, b=1 and c=1.
func newPipeline(t *testing.T, typeURL string, delta bool) *pipeline {
	p := &pipeline{table: newTable(t, delta), typeURL: typeURL, whole: typeURL == cds && !delta}
	p.put("a=1", "b=1", "c=1")
	p.ask(&request{typeURL: typeURL, subscribe: p.names(), names: p.names()})
	p.take(p.sent())
	p.events = nil
	return p
}

// pipeline is a client that receives several responses before it answers the first.
type pipeline struct {
	*table
	typeURL string
	whole   bool // each response contains all resources
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

// sent returns the response that the session sends now.
func (p *pipeline) sent() *response {
	p.t.Helper()
	r := p.session.next(p.now)
	if r == nil {
		p.t.Fatal("nothing is sent")
	}
	return r
}

// unanswered returns the response that the session sends now, and advances the time until its
// answer is overdue.
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
	p.answer(r, nil)
}

func (p *pipeline) refuse(r *response, message string) {
	p.answer(r, &statusv3.Status{Code: 3, Message: message})
}

func (p *pipeline) answer(r *response, refusal *statusv3.Status) {
	p.ask(&request{typeURL: p.typeURL, nonce: r.nonce, refusal: refusal, names: p.names()})
}

// has compares the versions that the client has, according to the session, with the wanted ones.
func (p *pipeline) has(want string) {
	p.t.Helper()
	w := p.session.watches[p.typeURL]
	name, _, _ := strings.Cut(want, "=")
	if got := w.acknowledged(name, p.session.get(w, name)); !same(got, made(p.typeURL, want)) {
		p.t.Errorf("has %s, want %s", got.EncodedMessage(), want)
	}
}

const bIsBad = "Error adding/updating cluster(s) b: bad"

// TestUnanswered_LateRefusals refuses a version after the next version was sent, and then refuses
// the next one, too. The client continues to use the version that it accepted last.
func TestUnanswered_LateRefusals(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2", "a=2")
		first := p.unanswered()
		p.put("b=3")
		second := p.sent()
		p.refuse(first, bIsBad)
		p.refuse(second, bIsBad)
		p.has("b=1")
		// a is sent again, because the client did not accept it in the response that contained the
		// refused b
		p.take(p.sent())
		p.sends()
		p.put("b=4", "c=2")
		p.refuse(p.sent(), bIsBad)
		p.take(p.sent())
		p.events = nil
		p.put("b=5")
		p.take(p.sent())
		p.saw("accepted "+short(p.typeURL), "recovered "+short(p.typeURL)+" [b]")
	})
}

// TestUnanswered_ChainOfRefusals sends as many versions as the session remembers for late answers,
// and refuses all of them. The client then has the version that it accepted before.
func TestUnanswered_ChainOfRefusals(t *testing.T) {
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
	})
}

func TestUnanswered_LateAcceptance(t *testing.T) {
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
	})
}

// TestRefusal_OfReplacedVersion refuses a version after its replacement was sent, and accepts the
// replacement. The refusal is reported, and ends.
func TestRefusal_OfReplacedVersion(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2", "c=2")
		first := p.unanswered()
		p.put("b=3")
		second := p.sent()
		p.refuse(first, bIsBad)
		p.take(second)
		// the second response contains the resources of the first, so the answer to it decides
		if p.whole {
			p.saw("accepted CDS")
		} else {
			p.saw("refused "+short(p.typeURL)+" [b]", "accepted "+short(p.typeURL),
				"recovered "+short(p.typeURL)+" [b]")
			r := p.sent() // c was in the response with the refused b, so it is sent again
			if got, want := line(r), short(p.typeURL)+" c=2"; got != want {
				t.Errorf("sent %q, want %q", got, want)
			}
			p.take(r)
		}
		p.has("b=3")
		p.has("c=2")
		p.sends()
		if w := p.session.watches[p.typeURL]; len(w.refused)+len(w.differs)+len(w.late) > 0 {
			t.Errorf("left: %+v", w)
		}
	})
}

// TestRefusal_UnnamedOfReplacedVersion replaces a resource, and then refuses the earlier response
// with a message that names no resource. The other resources are sent again; if they are refused
// again, they are the cause.
func TestRefusal_UnnamedOfReplacedVersion(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2", "c=2")
		first := p.unanswered()
		p.put("b=3")
		second := p.sent()
		p.refuse(first, "bad")
		p.take(second)
		if !p.whole {
			p.saw("refused "+short(p.typeURL)+" [b c]", "recovered "+short(p.typeURL)+" [b c]",
				"accepted "+short(p.typeURL))
			p.refuse(p.sent(), "bad")
			p.saw("refused " + short(p.typeURL) + " [c]")
		}
		p.sends()
	})
}

// TestTrial_IgnoresAnswersToOtherResponses has a client answer another response during a trial.
// This answer does not affect the trial.
func TestTrial_IgnoresAnswersToOtherResponses(t *testing.T) {
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

// TestRefusal_OfWithdrawnVersion refuses a version that was reverted after it was sent. No resource
// remains refused.
func TestRefusal_OfWithdrawnVersion(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("b=2")
		r := p.sent()
		p.put("b=1")
		p.refuse(r, bIsBad)
		p.saw("refused "+short(p.typeURL)+" [b]", "recovered "+short(p.typeURL)+" [b]")
		if got, want := p.refusals[0].VersionsInUse[0], made(p.typeURL,
			"b=1").Version; got != want {
			t.Errorf("accepted version %q, want %q", got, want)
		}
		p.sends()
	})
}

// TestUnanswered_RefusalCoversSkippedResponses has a client skip responses and refuse a later one.
// The refusal applies to the skipped responses, too.
func TestUnanswered_RefusalCoversSkippedResponses(t *testing.T) {
	for _, unanswered := range []int{1, maxLate, maxLate + 5} {
		each(t, func(t *testing.T, p *pipeline) {
			for i := range unanswered {
				p.put(fmt.Sprintf("b=%d", 2+i), "c=2")
				p.unanswered()
			}
			p.put("b=0")
			last := p.sent()
			p.events = nil
			p.refuse(last, bIsBad)
			p.has("b=1")
			p.saw("refused " + short(p.typeURL) + " [b]")
			// the client may have accepted an earlier version of b, and may not have accepted c, so
			// both are sent again
			r := p.sent()
			want := "b=1 c=2"
			if p.whole {
				want = "a=1 b=1 c=2"
			}
			if got := line(r); got != short(p.typeURL)+" "+want {
				t.Errorf("sent %q, want %q", got, want)
			}
			p.take(r)
			p.sends()
			if w := p.session.watches[p.typeURL]; len(w.late) > 0 {
				t.Errorf("%d are waited for", len(w.late))
			}
		})
	}
}

// TestUnanswered_AcceptanceCoversSkippedResponses has a client accept several responses with one
// answer, as a busy Envoy does.
func TestUnanswered_AcceptanceCoversSkippedResponses(t *testing.T) {
	each(t, func(t *testing.T, p *pipeline) {
		p.put("a=0")
		p.refuse(p.sent(), "bad")
		p.sends()
		for i := range 4 {
			p.put("a=2", fmt.Sprintf("b=%d", 2+i))
			p.unanswered()
		}
		p.put("c=2")
		last := p.sent()
		p.events = nil
		p.take(last)
		p.saw("accepted "+short(p.typeURL), "recovered "+short(p.typeURL)+" [a]")
		p.has("a=2")
		p.has("b=5")
		p.sends()
	})
}
