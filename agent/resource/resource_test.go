package resource

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestEncodedFormsDecodeToTheSameMessage(t *testing.T) {
	cluster := &clusterv3.Cluster{Name: "a", ConnectTimeout: durationpb.New(1e9)}
	r, err := New("a", cluster)
	if err != nil {
		t.Fatal(err)
	}
	var delta discoveryv3.Resource
	if err := proto.Unmarshal(r.Delta(), &delta); err != nil {
		t.Fatal(err)
	}
	var state anypb.Any
	if err := proto.Unmarshal(r.Any(), &state); err != nil {
		t.Fatal(err)
	}
	if delta.Name != "a" || delta.Version != r.Version || !proto.Equal(delta.Resource, &state) {
		t.Errorf("delta %v, any %v", &delta, &state)
	}
	var got clusterv3.Cluster
	if err := state.UnmarshalTo(&got); err != nil || !proto.Equal(&got, cluster) {
		t.Errorf("got %v, %v", &got, err)
	}
	if cap(r.delta) != len(r.delta) {
		t.Errorf("%d bytes reserved for %d", cap(r.delta), len(r.delta))
	}
}

func TestNewRefusesWhatEnvoyWould(t *testing.T) {
	if _, err := New("a", &clusterv3.Cluster{Name: ""}); err == nil {
		t.Error("a cluster without a name was accepted")
	}
}

func TestFeedTellsWhatChanged(t *testing.T) {
	make1 := func(name, content string) *Resource { return FromEncoded(ClusterType, name, []byte(content)) }
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
	feed.Publish(Change{Set: []*Resource{make1("a", "3")}, Remove: []Key{{ClusterType, "b"}, {ClusterType, "none"}}})
	keys, ok := feed.Since(second.Sequence)
	if !ok || len(keys) != 2 {
		t.Errorf("since %d: %v %v", second.Sequence, keys, ok)
	}
	if second.Get(Key{ClusterType, "b"}) == nil {
		t.Error("an old snapshot changed")
	}
	if now, _ := feed.Current(); now.Get(Key{ClusterType, "b"}) != nil || len(now.Set(ClusterType)) != 1 {
		t.Error("a removed resource is still there")
	}
	for range history {
		feed.Publish(Change{Set: []*Resource{make1("a", "x")}})
		feed.Publish(Change{Set: []*Resource{make1("a", "y")}})
	}
	if _, ok := feed.Since(second.Sequence); ok {
		t.Error("a forgotten history was told")
	}
}

func TestEmptyFirstPublishIsASnapshot(t *testing.T) {
	feed := NewFeed()
	if s := feed.Publish(Change{}); s.Sequence != 1 {
		t.Errorf("sequence %d", s.Sequence)
	}
}
