package resource

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestResource_FormsDecodeToSameMessage(t *testing.T) {
	cluster := &clusterv3.Cluster{Name: "a", ConnectTimeout: durationpb.New(1e9)}
	r, err := New("a", cluster)
	if err != nil {
		t.Fatal(err)
	}
	var delta discoveryv3.Resource
	if err := proto.Unmarshal(r.encodedDeltaResource(), &delta); err != nil {
		t.Fatal(err)
	}
	var state anypb.Any
	if err := proto.Unmarshal(r.EncodedAny(), &state); err != nil {
		t.Fatal(err)
	}
	if delta.Name != "a" || delta.Version != r.Version || !proto.Equal(delta.Resource, &state) {
		t.Errorf("delta %v, any %v", &delta, &state)
	}
	var got clusterv3.Cluster
	if err := state.UnmarshalTo(&got); err != nil || !proto.Equal(&got, cluster) {
		t.Errorf("got %v, %v", &got, err)
	}
	var whole discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(r.EncodedDeltaResponseField(), &whole); err != nil ||
		len(whole.Resources) != 1 ||
		!proto.Equal(whole.Resources[0], &delta) {
		t.Errorf("as the field of a delta response: %v, %v", &whole, err)
	}
	var wholeState discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(r.EncodedSotWResponseField(), &wholeState); err != nil ||
		len(wholeState.Resources) != 1 || !proto.Equal(wholeState.Resources[0], &state) {
		t.Errorf("as the field of a response: %v, %v", &wholeState, err)
	}
	if !bytes.Equal(r.EncodedMessage(), state.Value) {
		t.Errorf("value %x", r.EncodedMessage())
	}
	if cap(r.encoded) != len(r.encoded) {
		t.Errorf("%d bytes reserved for %d", cap(r.encoded), len(r.encoded))
	}
}

func TestNew_ValidatesMessage(t *testing.T) {
	if _, err := New("a", &clusterv3.Cluster{Name: ""}); err == nil {
		t.Error("a cluster without a name was accepted")
	}
}

func TestFeed_Since(t *testing.T) {
	make1 := func(name, content string) *Resource {
		return FromEncoded(ClusterType, name, []byte(content))
	}
	feed := NewFeed()
	first, next := feed.Current()
	if first.Sequence != 0 {
		t.Fatalf("sequence %d before anything was published", first.Sequence)
	}
	feed.Publish(Change{Set: []*Resource{make1("a", "1"), make1("b", "1")}})
	select {
	case <-next:
	default:
		t.Fatal("nobody was woken")
	}
	second, next := feed.Current()
	feed.Publish(Change{Set: []*Resource{make1("a", "1")}})
	select {
	case <-next:
		t.Fatal("woken by a change that changes nothing")
	default:
	}
	feed.Publish(Change{Set: []*Resource{make1("a", "2")}})
	feed.Publish(Change{Set: []*Resource{make1("a", "3")}, Remove: []Key{{ClusterType, "b"},
		{ClusterType, "none"}}})
	keys, ok := feed.ChangedSince(second.Sequence)
	if !ok || len(keys) != 2 {
		t.Errorf("since %d: %v %v", second.Sequence, keys, ok)
	}
	if second.Get(Key{ClusterType, "b"}) == nil {
		t.Error("an old snapshot changed")
	}
	if now, _ := feed.Current(); now.Get(Key{ClusterType, "b"}) != nil ||
		len(now.ByType(ClusterType)) != 1 {
		t.Error("a removed resource is still there")
	}
	for range history {
		feed.Publish(Change{Set: []*Resource{make1("a", "x")}})
		feed.Publish(Change{Set: []*Resource{make1("a", "y")}})
	}
	if _, ok := feed.ChangedSince(second.Sequence); ok {
		t.Error("a forgotten history was told")
	}
}

func TestFeed_EmptyFirstPublish(t *testing.T) {
	feed := NewFeed()
	if s := feed.Publish(Change{}); s.Sequence != 1 || s.Published.IsZero() {
		t.Errorf("sequence %d, published %v", s.Sequence, s.Published)
	}
}

func TestSnapshot_Changed(t *testing.T) {
	feed := NewFeed()
	feed.Publish(Change{Set: []*Resource{FromEncoded(ClusterType, "a", []byte("1")),
		FromEncoded(RouteType, "r", nil)}})
	now := feed.Publish(Change{Set: []*Resource{FromEncoded(ClusterType, "a", []byte("2"))}})
	if c, r, l := now.LastChange(ClusterType), now.LastChange(RouteType),
		now.LastChange(ListenerType); c != 2 || r != 1 || l != 0 {
		t.Errorf("changed by: cluster %d, route %d, listener %d", c, r, l)
	}
}

func TestFeed_Idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := time.Now()
		f := NewFeed()
		time.Sleep(time.Second)
		if !f.IdleSince().Equal(made) {
			t.Errorf("a new feed is idle since %v", f.IdleSince())
		}
		one, other := f.AddWatcher(), f.AddWatcher()
		one()
		if !f.IdleSince().IsZero() {
			t.Errorf("a followed feed is idle since %v", f.IdleSince())
		}
		other()
		if !f.IdleSince().Equal(time.Now()) {
			t.Errorf("a feed that was left is idle since %v", f.IdleSince())
		}
	})
}

func TestResource_JSON(t *testing.T) {
	for name, r := range map[string]*Resource{
		"known":        FromEncoded(ClusterType, "a", []byte("content")),
		"version only": {Type: ClusterType, Name: "a", Version: "1"},
	} {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var got Resource
		if err := json.Unmarshal(text, &got); err != nil || got.Key() != r.Key() ||
			got.Version != r.Version || got.HasContent() != r.HasContent() || !bytes.Equal(got.EncodedMessage(), r.EncodedMessage()) {
			t.Errorf("%s: %s is %+v, %v", name, text, got, err)
		}
	}
	if _, err := json.Marshal(FromEncoded(SecretType, "a", []byte("key"))); err == nil {
		t.Error("a secret can be stored")
	}
	if err := json.Unmarshal([]byte(`{"type": "`+SecretType+`", "value": "AA=="}`), &Resource{}); err == nil {
		t.Error("a secret can be read")
	}
}
