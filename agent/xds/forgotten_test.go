package xds

import (
	"fmt"
	"testing"

	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
)

// TestUnanswered_LateRefusalAfterUnsubscribe has a client unsubscribe from a name and subscribe to
// it again before its late refusals arrive. For the session, the client then has no version from
// the earlier subscription.
func TestUnanswered_LateRefusalAfterUnsubscribe(t *testing.T) {
	for name, names := range map[string][]string{"by name": {"a", "b"}, "wildcard": {wildcard}} {
		t.Run(name, func(t *testing.T) {
			p := newTable(t, true)
			p.publish(cluster("a=1"), cluster("b=1"))
			p.ask(&request{typeURL: cds, subscribe: names})
			p.sends("CDS a=1 b=1")
			p.ack(cds)
			p.publish(cluster("a=2"), cluster("b=6"))
			p.sends("CDS a=2 b=6")
			first := p.last[cds].nonce
			p.tire()
			again := names[len(names)-1:]
			p.ask(&request{typeURL: cds, unsubscribe: again})
			p.ask(&request{typeURL: cds, subscribe: again})
			p.publish(cluster("a=3"), cluster("b=5"))
			p.sends("CDS a=3 b=5")
			p.events = nil
			p.ask(&request{typeURL: cds, nonce: first, refusal: &statusv3.Status{Message: bIsBad}})
			p.nack(cds, bIsBad)
			// the refused responses also contained a, but Envoy's message names only b
			p.saw("refused CDS [b]", "refused CDS [b]")
			// the client did not accept a=3, because the response was refused; the session sends it
			// again
			p.sends("CDS a=3 b=1")
			p.ack(cds)
			p.publish(cluster("b=1"))
			p.sends()
		})
	}
}

// TestUnanswered_FreesUnsubscribedNames checks that the memory of unsubscribed names is freed, even
// if the client never answers.
func TestUnanswered_FreesUnsubscribedNames(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		p := &pipeline{table: newTable(t, delta), typeURL: cds}
		p.put("a=1")
		p.ask(&request{typeURL: cds})
		p.take(p.sent())
		for i := range 3 * maxLate {
			name := fmt.Sprint("gone", i)
			p.put(name + "=1")
			p.unanswered()
			p.remove(cds, name)
			p.unanswered()
		}
		for r := range p.session.watches[cds].unanswered {
			if len(r.changes) > 1 {
				t.Errorf("changes: %v", r.changes)
			}
		}
	})
	t.Run("unsubscribed", func(t *testing.T) {
		p := &pipeline{table: newTable(t, true), typeURL: cds}
		p.put("a=1", "b=1")
		p.ask(&request{typeURL: cds, subscribe: []string{"a", "b"}})
		p.take(p.sent())
		p.put("b=2")
		p.unanswered()
		p.ask(&request{typeURL: cds, unsubscribe: []string{"b"}})
		for i := range maxLate {
			p.put(fmt.Sprint("a=", 2+i))
			p.unanswered()
		}
		for r := range p.session.watches[cds].unanswered {
			if r.changesName("b") {
				t.Errorf("changes: %v", r.changes)
			}
		}
	})
}

// TestUnanswered_RefusalOfForgottenResponse sends more responses than the session remembers, and
// then the client refuses one that the session has forgotten. Each response has all resources, so
// the refused resource is in later responses, too. Resources that did not change are not regarded
// as refused.
func TestUnanswered_RefusalOfForgottenResponse(t *testing.T) {
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprint("taken ", taken), func(t *testing.T) {
			p := &pipeline{table: newTable(t, false), typeURL: cds, whole: true}
			p.put("a=1", "b=1", "c=1")
			p.ask(&request{typeURL: cds})
			p.take(p.sent())
			p.put("b=2")
			all := []*response{p.unanswered()}
			for i := range maxLate + 1 {
				p.put(fmt.Sprint("c=", 2+i))
				all = append(all, p.unanswered())
			}
			p.events = nil
			bad := bIsBad
			if taken { // the client accepts the first response, and then refuses c in all others
				p.take(all[0])
				all, bad = all[1:], "Error adding/updating cluster(s) c: bad"
			}
			for _, r := range all {
				p.refuse(r, bad)
			}
			if taken {
				p.saw("refused CDS [c]")
				if got, want := line(p.sent()), "CDS a=1 b=2 c=1"; got != want {
					t.Errorf("sent %q, want %q", got, want)
				}
				return
			}
			p.saw("refused CDS [b]")
			p.has("b=1")
			if got, want := line(p.sent()), fmt.Sprintf("CDS a=1 b=1 c=%d",
				2+maxLate); got != want {
				t.Errorf("sent %q, want %q", got, want)
			}
		})
	}
}
