package resource

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStandIns(t *testing.T) {
	made := func(name, content string) *Resource { return FromEncoded(ClusterType, name, []byte(content)) }
	f := NewFeed()
	f.Recall(made("a", "1"), made("same", "1"), made("gone", "1")) // from an earlier run
	expect := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, r := range f.StandIns() {
			got = append(got, r.Name+"="+string(r.Value()))
			if f.StandIn(Key{r.Type, r.Name}) != r {
				t.Errorf("%s: %s is not found", when, r.Name)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", when, d)
		}
	}
	expect("not published", "a=1", "gone=1", "same=1")
	f.Publish(Change{Set: []*Resource{made("a", "2"), made("same", "1"), made("b", "2"), made("c", "2")}})
	expect("published", "a=1")
	_, next := f.Current()
	f.Refused(nil, []*Resource{made("b", "1"), made("c", "2"), made("gone", "1")})
	select {
	case <-next:
	default:
		t.Error("nobody was woken")
	}
	expect("what fits nothing does not stand in", "a=1", "b=1")
	f.Taken([]*Resource{made("a", "1"), made("b", "0"), made("c", "2")})
	expect("what is taken is not the newest", "a=1", "b=1")
	f.Publish(Change{Set: []*Resource{made("a", "3"), made("b", "3")}})
	expect("another that nobody has seen yet", "a=1", "b=1")
	key := Key{ClusterType, "a"}
	f.Refused([]Key{key}, nil)
	f.Refused([]Key{key}, []*Resource{made("a", "1")})
	f.Forgive(key)
	f.Taken([]*Resource{made("a", "3")})
	expect("taken by one, and refused by another", "a=1", "b=1")
	f.Forgive(key)
	f.Taken([]*Resource{made("a", "3")})
	expect("taken", "b=1")
	f.Refused([]Key{key}, nil)
	expect("who took it did not look", "a=1", "b=1")
	f.Forgive(key)
	f.Taken([]*Resource{made("a", "3")})
	f.Publish(Change{Set: []*Resource{made("a", "4")}})
	f.Refused([]Key{key}, []*Resource{made("a", "3")})
	expect("what was taken and outdated", "a=3", "b=1")
	f.Publish(Change{Set: []*Resource{made("b", "1")}})
	expect("taken back", "a=3")
	f.Publish(Change{Remove: []Key{key}})
	expect("removed")
}
