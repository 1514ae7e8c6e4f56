package xds

import (
	"slices"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"

	"outrider.org/outrider/agent/resource"
)

const sds = resource.SecretType

// newDemandTable returns a table whose feed is on demand (see resource.NewOnDemandFeed).
func newDemandTable(t testing.TB, delta bool) *table {
	p := newTable(t, delta)
	p.feed = resource.NewOnDemandFeed()
	p.session.feed = p.feed
	p.session.snapshot, _ = p.feed.Current()
	p.publish()
	return p
}

func (p *table) absent(names ...string) {
	var change resource.Change
	for _, name := range names {
		change.KnownAbsent = append(change.KnownAbsent, resource.Key{Type: sds, Name: name})
	}
	p.feed.Publish(change)
	p.follow()
}

func TestDemand_AnswersOnceKnown(t *testing.T) {
	p := newDemandTable(t, true)
	p.ask(&request{typeURL: sds, subscribe: []string{"a", "b"}})
	p.sends()
	p.publish(made(sds, "a=1"))
	p.sends("SDS a=1")
	p.ack(sds)
	p.absent("b")
	p.sends("SDS -b")
	p.ack(sds)
	p.publish(made(sds, "b=1"), made(sds, "other=1"))
	p.sends("SDS b=1")
	p.ack(sds)
	// the publisher neither has the resource nor reports it absent, so the client keeps its version
	p.remove(sds, "b")
	p.sends()
	p.ask(&request{typeURL: sds, subscribe: []string{"c", "a"}})
	p.sends("SDS a=1")
	p.ack(sds)
	p.absent("c", "b")
	p.sends("SDS -b -c")
}

func TestDemand_StateOfTheWorldGetsAnEmptyResponse(t *testing.T) {
	p := newDemandTable(t, false)
	p.ask(&request{typeURL: sds, names: []string{"a"}})
	p.sends()
	p.absent("a")
	p.sends("SDS -a")
	p.ack(sds, "a")
	p.sends()
	p.publish(made(sds, "a=1"))
	p.sends("SDS a=1")
}

// demand is a SecretSubscriptionObserver that records for which names it was called.
type demand struct {
	mu sync.Mutex
	// all names of open subscriptions, sorted; a name occurs once for each subscription
	names []string
}

func (d *demand) Subscribe(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names = slices.Sorted(slices.Values(append(d.names, names...)))
}

func (d *demand) Unsubscribe(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		at := slices.Index(d.names, name)
		d.names = slices.Delete(d.names, at, at+1)
	}
}

func (d *demand) is(want ...string) func() bool {
	return func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.Equal(d.names, want)
	}
}

func TestDemand_SubscriberFollowsStreams(t *testing.T) {
	wanted := &demand{}
	socket := socketPath(t)
	serve(t, socket, Options{Source: oneFeed{resource.NewOnDemandFeed()},
		SecretSubscriptionObserver: wanted})
	client := secretv3.NewSecretDiscoveryServiceClient(dial(t, socket))
	delta, err := client.DeltaSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	state, err := client.StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	send(delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: sds,
		ResourceNamesSubscribe: []string{"a", "b", "a"}}))
	send(state.Send(&discoveryv3.DiscoveryRequest{Node: aNode, TypeUrl: sds,
		ResourceNames: []string{"b", "c"}}))
	eventually(t, "both subscribe", wanted.is("a", "b", "b", "c"))
	send(delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: sds,
		ResourceNamesSubscribe: []string{"d"}, ResourceNamesUnsubscribe: []string{"a", "x"}}))
	send(state.Send(&discoveryv3.DiscoveryRequest{TypeUrl: sds, ResourceNames: []string{"c"}}))
	eventually(t, "names change", wanted.is("b", "c", "d"))
	send(delta.CloseSend())
	eventually(t, "a stream ends", wanted.is("c"))
	send(state.CloseSend())
	eventually(t, "both end", wanted.is())
}
