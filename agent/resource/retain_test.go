package resource

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// message returns a resource whose message has a string field with the name of each resource in
// refersTo.
func message(typeURL, name string, refersTo ...string) *Resource {
	var value []byte
	for _, other := range refersTo {
		value = append(binary.AppendUvarint(append(value, 0x0a), uint64(len(other))), other...)
	}
	return FromEncoded(typeURL, name, value)
}

// threadTime returns the processor time that the calling thread has used.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestFeed_RetainsInLinearTime publishes 5,000 clusters and a route that refers to them, and then
// removes all clusters. When a client refuses the changed route, the feed must not hold its lock
// for seconds to determine which clusters remain.
func TestFeed_RetainsInLinearTime(t *testing.T) {
	f, client := NewFeed(), Client{"a", 1}
	var names []string
	var all []*Resource
	var removed []Key
	for i := range 5000 {
		names = append(names, fmt.Sprintf("outbound|80||service-%d.shop.svc.cluster.local", i))
		all = append(all, message(ClusterType, names[i]))
		removed = append(removed, all[i].Key())
	}
	route := func(extra string) *Resource {
		return message(RouteType, "80", append(names, extra)...)
	}
	f.Publish(Change{Set: append(all, route("a"))})
	f.Accept(client, 1, append(all, route("a")))
	f.Publish(Change{Set: []*Resource{route("b")}})
	f.Publish(Change{Remove: removed})
	// threadTime excludes other tests and programs only if the goroutine stays on this thread
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(t)
	s := f.Refuse(client, Nack{Resource: route("b"), VersionInUse: route("a"), Reason: "bad"})
	if took := threadTime(t) - began; took > 2*time.Second {
		t.Errorf("a refusal takes %v", took)
	}
	if got := len(s.ByType(ClusterType)); got != len(names) {
		t.Errorf("%d clusters stay for the refused route, want %d", got, len(names))
	}
	f.Publish(Change{Set: []*Resource{route("c")}})
	if s, _ := f.Current(); len(s.ByType(ClusterType)) > 0 {
		t.Errorf("%d clusters stay after the correction", len(s.ByType(ClusterType)))
	}
}

// TestFeed_OlderClientsAcceptAndRefuse has two Envoys of one proxy. The old one accepts one version
// and refuses the next. For clusters, and for listeners until the new Envoy has answered listeners,
// its answers count: new clients receive the version that it accepted. Otherwise they do not count,
// and new clients receive the newest version.
func TestFeed_OlderClientsAcceptAndRefuse(t *testing.T) {
	for _, test := range []struct {
		typeURL  string
		joined   bool
		accepted string
		offered  bool
	}{
		{ClusterType, true, "2", false},
		{ListenerType, false, "2", false},
		{ListenerType, true, "1", true},
	} {
		typeURL, f := test.typeURL, NewFeed()
		version := func(content string) *Resource { return FromEncoded(typeURL, "a", []byte(content)) }
		live, starting := Client{"a", 1}, Client{"a", 2}
		f.AddClient(live, 0)
		f.Accept(live, f.Publish(Change{Set: []*Resource{version("1")}}).Sequence,
			[]*Resource{version("1")})
		if test.joined {
			f.AddClient(starting, 0)
		}
		f.Accept(live, f.Publish(Change{Set: []*Resource{version("2")}}).Sequence,
			[]*Resource{version("2")})
		f.Publish(Change{Set: []*Resource{version("3")}})
		s := f.Refuse(live, Nack{Resource: version("3"), VersionInUse: version("2"), Reason: "bad"})
		got := s.Refusal(Key{typeURL, "a"})
		if string(got.LastAccepted.EncodedMessage()) != test.accepted ||
			got.OfferToNewClients != test.offered {
			t.Errorf("%+v: last accepted: version %s, offered %v", test,
				got.LastAccepted.EncodedMessage(), got.OfferToNewClients)
		}
		s = f.Refuse(starting, Nack{Resource: version("3"), VersionInUse: version("1"),
			Reason: "bad"})
		if s.Refusal(Key{typeURL, "a"}).OfferToNewClients {
			t.Errorf("%+v: offered although the newest client refuses it", test)
		}
	}
}

// TestFeed_EpochsAreOrderedByNumber checks that the newest client of a proxy is the one with the
// highest epoch, even if a draining epoch connects last, as after a restart of the agent.
func TestFeed_EpochsAreOrderedByNumber(t *testing.T) {
	version := func(content string) *Resource {
		return FromEncoded(ListenerType, "a", []byte(content))
	}
	f, live, draining, next := NewFeed(), Client{"a", 1}, Client{"a", 2}, Client{"a", 3}
	f.Publish(Change{Set: []*Resource{version("1")}})
	f.AddClient(live, 7)
	f.AddClient(draining, 6)
	offered := func(client Client, refused *Resource) bool {
		f.Publish(Change{Set: []*Resource{refused}})
		return f.Refuse(client, Nack{Resource: refused, VersionInUse: version("1"),
			Reason: "bad"}).Refusal(
			refused.Key()).OfferToNewClients
	}
	if !offered(draining, version("2")) || offered(live, version("3")) {
		t.Error("the stream of the draining epoch counts as the newest")
	}
	f.AddClient(next, 8)
	if !offered(live, version("4")) || offered(next, version("5")) {
		t.Error("the stream of the next epoch is not the newest")
	}
	f.RemoveClient(next)
	if offered(live, version("6")) {
		t.Error("the live epoch is not the newest again")
	}
}

// TestFeed_RetainsNoClosedListener checks that a listener that a policy closes does not remain in
// the snapshot for a refused listener, whether the policy was published in the same edit or later.
func TestFeed_RetainsNoClosedListener(t *testing.T) {
	old, next := message(ListenerType, "old"), message(ListenerType, "next")
	closed := map[Key]bool{old.Key(): true}
	for name, changes := range map[string][]Change{
		"in one edit": {{Set: []*Resource{next}, Remove: []Key{old.Key()},
			ListenersClosedByPolicy: closed}},
		"in two edits": {{Set: []*Resource{next}, Remove: []Key{old.Key()}},
			{ListenersClosedByPolicy: closed}},
	} {
		f, client := NewFeed(), Client{"a", 1}
		f.Accept(client, f.Publish(Change{Set: []*Resource{old}}).Sequence, []*Resource{old})
		f.Publish(changes[0])
		s := f.Refuse(client, Nack{Resource: next, Reason: "bad",
			ReplacedListeners: []*Resource{old}})
		if got := s.Get(old.Key()) != nil; got != (len(changes) > 1) {
			t.Errorf("%s: the old listener stays: %v", name, got)
		}
		for _, c := range changes[1:] {
			f.Publish(c)
		}
		if s, _ := f.Current(); s.Get(old.Key()) != nil {
			t.Errorf("%s: the closed listener stays", name)
		}
	}
}

// TestFeed_ForgetsSecrets checks that a removed secret does not remain in memory, because it
// contains a private key.
func TestFeed_ForgetsSecrets(t *testing.T) {
	f := NewFeed()
	secret := FromEncoded(SecretType, "a", []byte("key"))
	f.Publish(Change{Set: []*Resource{secret}})
	f.Accept(Client{"a", 1}, 1, []*Resource{secret})
	f.Publish(Change{Remove: []Key{secret.Key()}})
	if len(f.removed) > 0 {
		t.Errorf("stays: %v", f.removed)
	}
}

// TestFeed_RetriesNoSecret checks that RetryRefused does not send a secret again, because Envoy
// would accept it unchecked: Envoy does not check a secret that equals the one it has refused.
func TestFeed_RetriesNoSecret(t *testing.T) {
	for typeURL, want := range map[string]int{ClusterType: 1, SecretType: 0} {
		f := NewFeed()
		r := FromEncoded(typeURL, "a", []byte("1"))
		f.Publish(Change{Set: []*Resource{r}})
		f.Refuse(Client{"a", 1}, Nack{Resource: r, Reason: "bad"})
		f.RetryRefused()
		s, _ := f.Current()
		if got := s.Refusal(r.Key()); got == nil || got.Retries != want {
			t.Errorf("%s: %+v after a retry, want attempt %d", TypeName(typeURL), got, want)
		}
	}
}

// TestFeed_RestoredVersionIsTheNewest publishes the version that was accepted before a restart,
// because an edit was undone, and the next Envoy refuses it. The feed has no other version to send
// instead, and must not send the same one again.
func TestFeed_RestoredVersionIsTheNewest(t *testing.T) {
	f := NewFeed()
	r := FromEncoded(ClusterType, "a", []byte("1"))
	f.Restore(RefusalState{Refused: []RefusedVersion{{LastAccepted: r,
		Resource: &Resource{Type: r.Type, Name: r.Name, Version: "2"}}}})
	f.Publish(Change{Set: []*Resource{r}})
	s := f.Refuse(Client{"a", 1}, Nack{Resource: r, Reason: "bad"})
	if got := s.Refusal(r.Key()); got == nil || got.LastAccepted != nil {
		t.Errorf("refused: %+v", got)
	}
}

// TestFeed_StateHasTheAcceptedVersionUntilAnother restarts the agent after a version was refused
// and before clients have answered the next one. After the restart, the version that the client
// accepted last must still be known.
func TestFeed_StateHasTheAcceptedVersionUntilAnother(t *testing.T) {
	f, client := NewFeed(), Client{"a", 1}
	version := func(content string) *Resource {
		return FromEncoded(ListenerType, "a", []byte(content))
	}
	accept := func(content string) {
		f.Accept(client, f.Publish(Change{Set: []*Resource{version(content)}}).Sequence,
			[]*Resource{version(content)})
	}
	restart := func() {
		state := f.State()
		f = NewFeed()
		f.Restore(state)
		f.Publish(Change{Set: []*Resource{version("3")}})
	}
	accept("1")
	f.Publish(Change{Set: []*Resource{version("2")}})
	f.Refuse(client, Nack{Resource: version("2"), Reason: "bad"})
	f.Publish(Change{Set: []*Resource{version("3")}})
	restart()
	restart()
	if s, _ := f.Current(); len(s.AllRefused()) > 0 {
		t.Errorf("refused without an answer: %v", s.AllRefused())
	}
	s := f.Refuse(client, Nack{Resource: version("3"), Reason: "bad", VersionInUse: &Resource{
		Type: ListenerType, Name: "a", Version: version("1").Version}})
	if got := s.Refusal(version("").Key()); got == nil || got.InUse() == nil ||
		got.InUse().Version != version("1").Version {
		t.Errorf("refused: %+v", got)
	}
	before := f.Publish(Change{Set: []*Resource{version("4")}})
	f.Accept(client, before.Sequence, []*Resource{version("4")})
	if now, _ := f.Current(); len(f.State().Refused) > 0 || now.Sequence == before.Sequence {
		t.Errorf("once another version is accepted: %+v, in a new snapshot %v", f.State(),
			now.Sequence > before.Sequence)
	}
}
