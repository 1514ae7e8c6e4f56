package discovery_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/resource"
)

// What a proxy goes on with in place of what it refused is known to the next server too, for proxies of its kind.
func TestWhatStandsInIsRemembered(t *testing.T) {
	l := newLives(t)
	l.put("", "connectTimeout: 1s")
	l.put("web.yaml", `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web}
spec: {hosts: [web.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}
`)
	l.next()
	key := resource.Key{Type: resource.ClusterType, Name: "outbound|80||web.test"}
	newest := func() *resource.Resource {
		snapshot, _ := feedOf(t, l.server, "sidecar").Current()
		return snapshot.Get(key)
	}
	remembered := func(want bool) {
		t.Helper()
		eventually(t, "the file", func() (bool, string) {
			_, err := os.Stat(l.remembered)
			return want == (err == nil), l.log.String()
		})
	}
	accepted := newest()
	l.put("", "connectTimeout: 2s")
	refused := newest()
	refuse := func() {
		feedOf(t, l.server, "sidecar").Refused(resource.Refusal{Key: key, Version: refused.Version, Held: accepted})
		l.server.Refused(key.Type, []string{key.Name}, errors.New("it is bad"))
		remembered(true)
		if told := l.server.Problems(); len(told) != 1 || !strings.Contains(told[0].Cure, accepted.Version) {
			t.Errorf("told: %v", told)
		}
	}
	refuse()

	for range 2 { // the second server was told by nobody
		l.next()
		if in := feedOf(t, l.server, "sidecar").StandIn(newest()); in == nil || in.Version != accepted.Version || len(in.Origins) != 1 || in.Origins[0].Name != "web" {
			t.Errorf("stands in: %+v, want %+v", in, accepted)
		}
	}
	labelled := func(namespace string) *resource.Feed {
		feed, err := l.server.Feed(node("sidecar", namespace, map[string]any{"app": "other"}))
		if err != nil {
			t.Fatal(err)
		}
		return feed
	}
	if in := labelled("shop").StandIn(refused); in == nil || in.Version != accepted.Version {
		t.Errorf("another kind that has the same: %v", in)
	}
	if in := labelled("bank").StandIns(); in != nil {
		t.Errorf("another namespace: %v", in)
	}
	feedOf(t, l.server, "sidecar").Taken([]*resource.Resource{refused})
	l.server.Cured(key.Type, []string{key.Name})
	remembered(false)

	refuse()
	l.end()
	l.server = nil
	if err := os.Remove(filepath.Join(l.objects, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	l.next()
	if in := feedOf(t, l.server, "sidecar").StandIns(); in != nil {
		t.Errorf("what was removed meanwhile: %v", in)
	}
	remembered(false)
}

// What is refused while the server ends is written all the same: told by the feed alone, or to the server that has ended already. What
// is cut off by the end of the server is not taken for what has left.
func TestWhatIsRefusedAtTheEndIsRemembered(t *testing.T) {
	for _, test := range []struct {
		name   string
		refuse func(l *lives, refuse func())
	}{
		{"just before the end", func(l *lives, refuse func()) { refuse(); l.end() }},
		{"after the end", func(l *lives, refuse func()) {
			l.end()
			refuse()
			l.server.Refused(resource.ClusterType, []string{"outbound|80||web.test"}, errors.New("it is bad"))
		}},
	} {
		l := newLives(t)
		l.put("", "connectTimeout: 1s")
		l.put("web.yaml", fmt.Sprintf(webEntry, "web", "10.0.0.1"))
		l.next()
		feed := feedOf(t, l.server, "sidecar")
		leave := feed.Follow()
		key := resource.Key{Type: resource.ClusterType, Name: "outbound|80||web.test"}
		now := func() *resource.Resource {
			snapshot, _ := feed.Current()
			return snapshot.Get(key)
		}
		accepted := now()
		l.put("", "connectTimeout: 2s")
		refused := now()
		feedOf(t, l.server, "router") // another kind comes last
		l.put("", "connectTimeout: 2s\n")
		test.refuse(l, func() { feed.Refused(resource.Refusal{Key: key, Version: refused.Version, Held: accepted}) })
		leave()
		l.server.Cured(resource.ClusterType, []string{"unrelated"})
		l.server = nil
		l.next()
		if in := feedOf(t, l.server, "sidecar").StandIn(refused); in == nil || in.Version != accepted.Version {
			t.Errorf("%s: stands in: %v", test.name, in)
		}
		l.end()
	}
}
