package xds

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"outrider.org/outrider/agent/resource"
)

func TestSession_WaitsForFirstSnapshot(t *testing.T) {
	for _, delta := range []bool{true, false} {
		p := newTable(t, delta)
		p.ask(&request{typeURL: cds})
		p.ask(&request{typeURL: eds, subscribe: []string{"a", "none"}, names: []string{"a",
			"none"}})
		p.sends()
		p.publish(cluster("a=1"), made(eds, "a=1"))
		// a state-of-the-world response cannot express that "none" does not exist
		p.sends("CDS a=1", "EDS a=1 -none")
	}
}

func TestSession_AnswersEmptyFeed(t *testing.T) {
	p := newTable(t, true)
	p.ask(&request{typeURL: cds})
	p.publish()
	p.sends("CDS")
	p.ack(cds)
	p.sends()
	p.saw("accepted CDS")
}

func TestDelta_Subscriptions(t *testing.T) {
	start := func(t *testing.T) *table {
		p := newTable(t, true)
		p.publish(cluster("a=1"), cluster("b=1"), made(eds, "a=1"), made(eds, "b=1"))
		return p
	}
	t.Run("wildcard follows changes", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: cds})
		p.sends("CDS a=1 b=1")
		p.ack(cds)
		p.publish(cluster("b=2"), cluster("c=1"))
		p.sends("CDS b=2 c=1")
		p.ack(cds)
		p.remove(cds, "a")
		p.sends("CDS -a")
		p.ack(cds)
		p.sends()
	})
	t.Run("explicit wildcard begins and ends", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, subscribe: []string{"*"}})
		p.sends("EDS a=1 b=1")
		p.ack(eds)
		p.ask(&request{typeURL: eds, subscribe: []string{"a"}, unsubscribe: []string{"*"}})
		p.sends("EDS a=1") // the client has a=1 but has subscribed again, so it awaits a response
		p.ack(eds)
		p.publish(made(eds, "a=2"), made(eds, "b=2"))
		p.sends("EDS a=2")
	})
	t.Run("changes merge while an answer is awaited", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, subscribe: []string{"a"}})
		p.sends("EDS a=1")
		p.publish(made(eds, "a=2"))
		p.publish(made(eds, "a=3"))
		p.sends()
		p.ack(eds)
		p.sends("EDS a=3")
	})
	t.Run("a change back while the answer is awaited", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, subscribe: []string{"a"}})
		p.sends("EDS a=1")
		p.ack(eds)
		p.publish(made(eds, "a=2"))
		p.sends("EDS a=2")
		p.publish(made(eds, "a=1"))
		p.ack(eds)
		p.sends("EDS a=1")
	})
	t.Run("a name asked for again is sent again", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, subscribe: []string{"a"}})
		p.sends("EDS a=1")
		p.ask(&request{typeURL: eds, subscribe: []string{"a"}})
		p.sends()
		p.ack(eds)
		p.sends("EDS a=1")
	})
	t.Run("a missing name is reported, and sent once it exists", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, subscribe: []string{"x"}})
		p.sends("EDS -x")
		p.ack(eds)
		p.publish(made(eds, "x=1"))
		p.sends("EDS x=1")
	})
	t.Run("an unsubscribed name is not sent", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, subscribe: []string{"a", "b"}})
		p.sends("EDS a=1 b=1")
		p.ask(&request{typeURL: eds, nonce: p.last[eds].nonce, unsubscribe: []string{"a"}})
		p.publish(made(eds, "a=2"), made(eds, "b=2"))
		p.sends("EDS b=2")
	})
	t.Run("a name given up under a wildcard comes back", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: cds, subscribe: []string{"*", "a", "x"}})
		p.sends("CDS a=1 b=1 -x")
		p.ask(&request{typeURL: cds, nonce: p.last[cds].nonce, unsubscribe: []string{"a", "x"}})
		p.sends("CDS a=1 -x")
	})
	t.Run("an answer to an older response is no answer to this one", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, subscribe: []string{"a"}})
		p.sends("EDS a=1")
		p.ask(&request{typeURL: eds, nonce: "none such"})
		p.publish(made(eds, "a=2"))
		p.sends()
	})
}

func TestReconnect_SendsMissingResources(t *testing.T) {
	// the snapshot is published either before or after the request
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late ", late), func(t *testing.T) {
			p := newTable(t, true)
			content := []*resource.Resource{cluster("a=1"), cluster("b=2"), cluster("new=1"),
				made(eds, "a=1"), made(eds, "b=2")}
			if !late {
				p.publish(content...)
			}
			p.ask(&request{typeURL: cds, versions: map[string]string{
				"a": cluster("a=1").Version, "b": cluster("b=1").Version,
				"gone": cluster("gone=1").Version}})
			p.ask(&request{typeURL: eds, subscribe: []string{"a", "b", "gone"},
				versions: map[string]string{
					"a": made(eds, "a=1").Version, "b": made(eds, "b=1").Version, "gone": made(eds,
						"gone=1").Version}})
			if late {
				p.publish(content...)
			}
			p.sends("CDS b=2 new=1", "EDS b=2")
			p.ack(cds)
			p.ack(eds)
			p.sends("CDS -gone")
			p.ack(cds)
			p.sends("EDS -gone")
			p.ack(eds)
			p.sends()
		})
	}
}

func TestReconnect_SendsNothingToCurrentClient(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"))
	p.ask(&request{typeURL: cds, versions: map[string]string{"a": cluster("a=1").Version}})
	p.sends()
	p.publish(cluster("a=2"))
	p.sends("CDS a=2")
}

// TestReconnect_AsksAboutListeners checks that a client that reconnects receives a response without
// listeners. Its ACK shows that it uses the listeners from the earlier stream.
func TestReconnect_AsksAboutListeners(t *testing.T) {
	p := newTable(t, true)
	p.publish(made(lds, "a=1"))
	p.ask(&request{typeURL: lds, versions: map[string]string{"a": made(lds, "a=1").Version}})
	p.sends("LDS")
	p.ack(lds)
	p.sends()
}

// TestReconnect_DrainingClientAcceptsNoListeners has a client reconnect with a listener that
// another client refused. If the client's Envoy drains, this does not end the refusal, because
// draining Envoys do not check listeners.
func TestReconnect_DrainingClientAcceptsNoListeners(t *testing.T) {
	good, bad := made(lds, "a=1"), made(lds, "a=2")
	for epoch, want := range map[int]bool{resource.DrainingEpoch: true, 7: false} {
		p := newTable(t, true)
		p.session.epoch = func() int { return epoch }
		p.feed.Restore(resource.RefusalState{Refused: []resource.RefusedVersion{{LastAccepted: good,
			Resource: bad}}})
		p.publish(bad)
		p.ask(&request{typeURL: lds, versions: map[string]string{"a": bad.Version}})
		p.sends("LDS")
		p.ack(lds)
		now, _ := p.feed.Current()
		if of := now.Refusal(bad.Key()); (of != nil && of.InUse() == good &&
			!of.OfferToNewClients) != want {
			t.Errorf("epoch %d has it, refused: %+v, want %v", epoch, of, want)
		}
	}
}

func TestStateOfTheWorld_Subscriptions(t *testing.T) {
	start := func(t *testing.T) *table {
		p := newTable(t, false)
		p.publish(cluster("a=1"), cluster("b=1"), made(eds, "a=1"), made(eds, "b=1"))
		return p
	}
	t.Run("clusters are sent whole", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: cds})
		p.sends("CDS a=1 b=1")
		p.ack(cds)
		p.publish(cluster("b=2"))
		p.sends("CDS a=1 b=2")
		p.ack(cds)
		p.remove(cds, "a")
		p.sends("CDS b=2 -a")
		p.ack(cds)
		p.sends()
	})
	t.Run("endpoints are sent as they change", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, names: []string{"a", "b"}})
		p.sends("EDS a=1 b=1")
		p.ack(eds, "a", "b")
		p.publish(made(eds, "b=2"))
		p.sends("EDS b=2")
		p.ack(eds, "a", "b")
		p.sends()
	})
	t.Run("a name more is answered alone, a name less not at all", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, names: []string{"a"}})
		p.sends("EDS a=1")
		p.ack(eds, "a", "b", "b")
		p.sends("EDS b=1")
		p.ack(eds, "b")
		p.sends()
		p.publish(made(eds, "a=2"), made(eds, "b=2"))
		p.sends("EDS b=2")
		p.ack(eds)
		p.publish(made(eds, "b=3"))
		p.sends()
	})
	t.Run("a stale nonce is ignored", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds, names: []string{"a"}})
		p.sends("EDS a=1")
		old := p.last[eds].nonce
		p.ack(eds, "a")
		p.publish(made(eds, "a=2"))
		p.sends("EDS a=2")
		p.ask(&request{typeURL: eds, nonce: old, names: []string{"a", "b"}})
		p.sends()
		p.ack(eds, "a", "b")
		p.sends("EDS b=1")
	})
	t.Run("clusters by name, then all are given up", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: cds, names: []string{"a"}})
		p.sends("CDS a=1")
		p.ack(cds, "a")
		p.publish(cluster("b=2"))
		p.sends()
		p.ask(&request{typeURL: cds, nonce: p.last[cds].nonce})
		p.publish(cluster("a=2"))
		p.sends("CDS")
	})
	t.Run("endpoints without names are none", func(t *testing.T) {
		p := start(t)
		p.ask(&request{typeURL: eds})
		p.sends()
	})
}

func TestRequest_DropsExtensionsOfNode(t *testing.T) {
	node := &corev3.Node{Id: "a", Extensions: []*corev3.Extension{{Name: "b"}}}
	r := fromDelta(&deltaRequest{DeltaDiscoveryRequest: discoveryv3.DeltaDiscoveryRequest{Node: node}})
	if r.node.GetId() != "a" || len(r.node.GetExtensions()) > 0 {
		t.Errorf("node %v", r.node)
	}
	if r := fromState(&discoveryv3.DiscoveryRequest{}); r.node != nil {
		t.Errorf("no node: %v", r.node)
	}
}
