package xds

import (
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"outrider.org/outrider/agent/resource"
)

// eds1 returns an encoded cluster whose endpoints come from ADS: type EDS (field 2, value 3), and
// eds_config.ads (field 3.1.3).
func eds1(name, content string) *resource.Resource {
	value := append([]byte{0x0a, byte(len(name))}, name...)
	value = append(value, 0x10, 0x03, 0x1a, 0x04, 0x0a, 0x02, 0x1a, 0x00,
		0xe2, 0x01, byte(len(content))) // alt_stat_name (field 28), so that versions differ
	return resource.FromEncoded(cds, name, append(value, content...))
}

func TestOrder_ChangedClusterResendsEndpoints(t *testing.T) {
	for _, delta := range []bool{true, false} {
		p := newTable(t, delta)
		p.publish(eds1("a", "1"), made(eds, "a=1"), made(eds, "b=1"))
		p.ask(&request{typeURL: cds})
		p.ask(&request{typeURL: eds, subscribe: []string{"a", "b"}, names: []string{"a", "b"}})
		for p.session.next(p.now) != nil {
		}
		for _, w := range p.session.order {
			p.ask(&request{typeURL: w.typeURL, nonce: w.lastNonce,
				names: map[string][]string{eds: {"a", "b"}}[w.typeURL]})
		}
		// the clusters were new to the client, so their endpoints are sent again
		for r := p.session.next(p.now); r != nil; r = p.session.next(p.now) {
			p.last[r.typeURL] = r
		}
		if p.last[eds] != nil {
			p.ack(eds, "a", "b")
		}
		p.publish(eds1("a", "2"))
		// Envoy acknowledges clusters only after all of them are warm
		p.sends("CDS "+"a="+string(eds1("a", "2").EncodedMessage()), "EDS a=1")
	}
}

func TestOrder_EndpointsOfAnotherName(t *testing.T) {
	named := edsCluster("c", time.Second)
	named.EdsClusterConfig.ServiceName = "service"
	endpoints := newWatch(eds, true)
	endpoints.names = &nameSet{[]string{"a", "service"}}
	for want, c := range map[string]*clusterv3.Cluster{
		"a": edsCluster("a", time.Second), "service": named, "static": {Name: "static"},
	} {
		if got := endpoints.of(encoded(t, c.Name, c)); got != want {
			t.Errorf("%s: %q", want, got)
		}
	}
}

func TestOrder_MakeBeforeBreak(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("old=1"), made(lds, "l=1"), made(rds, "r=1"), made(eds, "old=1"),
		made(lds, "gone=1"))
	for _, typeURL := range []string{cds, lds} {
		p.ask(&request{typeURL: typeURL})
	}
	p.ask(&request{typeURL: rds, subscribe: []string{"r"}})
	p.ask(&request{typeURL: eds, subscribe: []string{"old"}})
	p.sends("CDS old=1", "EDS old=1")
	p.ack(cds)
	p.sends()
	p.ack(eds)
	p.sends("LDS gone=1 l=1", "RDS r=1")
	p.ack(lds)
	p.ack(rds)
	p.sends()

	p.feed.Publish(resource.Change{
		Set: []*resource.Resource{cluster("new=1"), made(lds, "l=2"), made(rds, "r=2")},
		Remove: []resource.Key{{Type: cds, Name: "old"}, {Type: lds, Name: "gone"},
			{Type: eds, Name: "old"}},
	})
	p.follow()
	p.sends("CDS new=1")
	p.ack(cds)
	p.sends("LDS l=2", "RDS r=2")
	p.ack(rds)
	p.sends()
	p.ack(lds)
	p.sends("LDS -gone")
	p.ack(lds)
	p.sends("CDS -old")
	p.ack(cds)
	p.sends("EDS -old")
}

func TestOrder_WaitsASecondForClusters(t *testing.T) {
	p := newTable(t, true)
	p.publish(cluster("a=1"), made(lds, "l=1"))
	p.ask(&request{typeURL: cds})
	p.ask(&request{typeURL: lds})
	p.sends("CDS a=1")
	if wake := p.session.wake(p.now); wake.Sub(p.now) != acknowledgeTime {
		t.Errorf("wakes in %v", wake.Sub(p.now))
	}
	clusters := p.last[cds]
	p.now = p.now.Add(acknowledgeTime)
	if late := p.session.expire(p.now); len(late) != 1 || late[0] != clusters {
		t.Errorf("unanswered: %v", late)
	}
	p.sends("LDS l=1")
	p.publish(cluster("a=2"), cluster("b=1"))
	p.sends("CDS a=2 b=1")
	p.now = p.now.Add(acknowledgeTime)
	p.session.expire(p.now)
	p.saw()

	// The client accepts the first version late and refuses the second, so it continues to use the
	// first.
	p.ask(&request{typeURL: cds, nonce: clusters.nonce})
	p.saw("accepted CDS")
	p.nack(cds, "Error adding/updating cluster(s) a: bad")
	p.saw("refused CDS [a]")
	// b was in the refused response, too, so it is sent again
	p.sends("CDS b=1")
	p.ack(cds)
	if r := p.session.watches[cds].refused["a"]; r == nil || !same(r.instead, cluster("a=1")) {
		t.Errorf("held after the late refusal: %+v", r)
	}
	p.publish(cluster("a=3"))
	p.sends("CDS a=3")
	p.ack(cds)
	p.saw("accepted CDS", "accepted CDS", "recovered CDS [a]")
}
