package resource

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func content(s string) *Resource { return FromEncoded(ClusterType, s[:1], []byte(s[2:])) }

// refuse has a client refuse "a=2", which took held before ("": nothing).
func refuse(f *Feed, refused, held string) {
	r := Refusal{Key: content(refused).Key(), Version: content(refused).Version}
	if held != "" {
		r.Held = content(held)
	}
	f.Refused(r)
}

// expect compares the stand-ins, "a=1" each; those that only wait are in brackets.
func expect(t *testing.T, f *Feed, when string, want ...string) {
	t.Helper()
	var got []string
	for _, in := range f.StandIns() {
		now, _ := f.Current()
		shown := in.Name + "=" + string(in.Value())
		if f.StandIn(now.Get(in.Key())) != in.Resource {
			shown = "(" + shown + ")"
		}
		got = append(got, shown)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", when, d)
	}
}

func TestStandIns(t *testing.T) {
	f := NewFeed()
	earlier := func(in, refused string) StandIn {
		return StandIn{content(in), content(refused).Version}
	}
	f.Recall(earlier("a=1", "a=2"), earlier("s=1", "s=2"), earlier("g=1", "g=2"))
	expect(t, f, "not published", "(a=1)", "(g=1)", "(s=1)")
	if f.StandIn(nil) != nil || f.StandIn(content("a=2")).Version != content("a=1").Version {
		t.Error("what stands in for a resource is not known")
	}
	f.Publish(Change{Set: []*Resource{content("a=2"), content("s=1"), content("b=2"),
		content("c=2")}})
	expect(t, f, "published", "a=1")
	_, next := f.Current()
	refuse(f, "b=2", "b=1")
	select {
	case <-next:
	default:
		t.Error("nobody was woken")
	}
	refuse(f, "c=3", "c=2")
	refuse(f, "g=2", "g=1")
	expect(t, f, "what fits nothing does not stand in", "a=1", "b=1")
	f.Forgive(content("b=2").Key())
	f.Taken([]*Resource{content("a=1"), content("b=0"), content("c=2")})
	expect(t, f, "what is taken is not the newest", "a=1", "b=1")
	f.Publish(Change{Set: []*Resource{content("a=3"), content("b=3")}})
	expect(t, f, "another that nobody has seen yet", "(a=1)", "(b=1)")
	key := content("a=1").Key()
	refuse(f, "a=3", "")
	refuse(f, "a=3", "a=1")
	f.Forgive(key)
	f.Taken([]*Resource{content("a=3")})
	expect(t, f, "taken by one, and refused by another", "a=1", "(b=1)")
	f.Forgive(key)
	f.Taken([]*Resource{content("a=3")})
	expect(t, f, "taken", "(b=1)")
	refuse(f, "a=2", "")
	expect(t, f, "an older one is refused, which says nothing", "(b=1)")
	refuse(f, "a=3", "")
	expect(t, f, "who took it did not look", "a=1", "(b=1)")
	f.Forgive(key, key)
	f.Taken([]*Resource{content("a=3")})
	f.Publish(Change{Set: []*Resource{content("a=4")}})
	refuse(f, "a=4", "a=3")
	expect(t, f, "what was taken and outdated", "a=3", "(b=1)")
	f.Publish(Change{Set: []*Resource{content("b=1")}})
	expect(t, f, "taken back", "a=3")
	f.Publish(Change{Remove: []Key{key}})
	expect(t, f, "removed")
}

// The word on a version that is not the newest any more may come late.
func TestALateRefusal(t *testing.T) {
	f := NewFeed()
	f.Publish(Change{Set: []*Resource{content("a=3")}})
	refuse(f, "a=2", "a=1")
	expect(t, f, "of one that was", "(a=1)")
	f.Publish(Change{Set: []*Resource{content("a=2")}})
	expect(t, f, "it is the newest again", "a=1")
	f.Publish(Change{Set: []*Resource{content("a=3")}})
	refuse(f, "a=3", "")
	expect(t, f, "of the newest, by one that has nothing", "a=1")
	_, next := f.Current()
	refuse(f, "a=3", "")
	refuse(f, "a=2", "a=0")
	expect(t, f, "of one that was, while something stands in for the newest", "a=1")
	select {
	case <-next:
		t.Error("all were woken for nothing")
	default:
	}
	refuse(f, "a=3", "a=2")
	expect(t, f, "of the newest, by one that took another", "a=2")
}
