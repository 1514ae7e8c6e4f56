package discovery_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// rule returns a DestinationRule for a.test with a connect timeout.
func rule(timeout string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a, namespace: shop}
spec: {host: a.test, trafficPolicy: {connectionPool: {tcp: {connectTimeout: %s}}}}
`, timeout)
}

// routesTo returns a VirtualService that rewrites requests for a host to a path.
func routesTo(name, path string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: shop}
spec: {hosts: [%s.test], http: [{rewrite: {uri: %s}, route: [{destination: {host: %s.test}}]}]}
`, name, name, path, name)
}

// newest returns the current resource of a sidecar.
func (l *runs) newest(typeURL, name string) *resource.Resource {
	l.t.Helper()
	snapshot, _ := feedOf(l.t, l.server, "sidecar").Current()
	return snapshot.Get(resource.Key{Type: typeURL, Name: name})
}

const clusterOfA = "outbound|80||a.test"

// timeout returns the connect timeout of the cluster of a.test, "" if there is none.
func (l *runs) timeout() string {
	l.t.Helper()
	r := l.newest(resource.ClusterType, clusterOfA)
	if r == nil {
		return ""
	}
	var cluster clusterv3.Cluster
	if err := proto.Unmarshal(r.Value(), &cluster); err != nil {
		l.t.Fatal(err)
	}
	return cluster.ConnectTimeout.AsDuration().String()
}

// rewrites returns the paths that the routes of port 80 rewrite to, by host.
func (l *runs) rewrites() string {
	l.t.Helper()
	var routes routev3.RouteConfiguration
	if err := proto.Unmarshal(l.newest(resource.RouteType, "80").Value(), &routes); err != nil {
		l.t.Fatal(err)
	}
	var all []string
	for _, host := range []string{"a", "b"} {
		for _, vh := range routes.VirtualHosts {
			if vh.Name == host+".test:80" {
				all = append(all, host+"="+vh.Routes[0].GetRoute().GetPrefixRewrite())
			}
		}
	}
	return strings.Join(all, " ")
}

// refuse refuses a current version, for a proxy with another one. It returns what remains refused.
func (l *runs) refuse(typeURL, name, reason string) []string {
	l.t.Helper()
	one := discovery.RefusedResource{Name: name, Version: l.newest(typeURL, name).Version,
		Held: true}
	standing, placed := l.server.Refused(typeURL, []discovery.RefusedResource{one},
		errors.New(reason))
	if !placed {
		l.t.Errorf("no file explains %s: %s", name, reason)
	}
	return standing
}

func (l *runs) serves(what, timeout string, problems ...string) {
	l.t.Helper()
	if got := l.timeout(); got != timeout {
		l.t.Errorf("%s: the timeout is %q, want %q", what, got, timeout)
	}
	l.reported(what, problems...)
}

// reported checks that the problems contain the given texts, in order.
func (l *runs) reported(what string, problems ...string) {
	l.t.Helper()
	reported := l.server.Problems()
	for i, p := range reported {
		if len(reported) != len(problems) || !strings.Contains(p.String(), problems[i]) {
			l.t.Errorf("%s: problems %v, want %q", what, reported, problems)
			return
		}
	}
	if len(reported) != len(problems) {
		l.t.Errorf("%s: problems %v, want %q", what, reported, problems)
	}
}

// persists waits until the last-good file exists, or does not.
func (l *runs) persists(want bool) {
	l.t.Helper()
	eventually(l.t, "the file", func() (bool, string) {
		_, err := os.Stat(l.lastGood)
		return want == (err == nil), l.log.String()
	})
}

func newFallback(t *testing.T) *runs {
	l := newRuns(t)
	l.put("", "accessLogFile: /dev/stdout")
	l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	l.put("rule.yaml", rule("1s"))
	l.next()
	feedOf(t, l.server, "sidecar")
	l.put("rule.yaml", rule("2s"))
	l.serves("at first", "2s")
	return l
}

const badCluster = "rule.yaml:1: DestinationRule shop/a: Envoy refused the Cluster " +
	"outbound|80||a.test: bad; " +
	"correct it; the version before stays in use until it changes, or a reload tries it again"

func TestFallback_ObjectGoesBackUntilItChanges(t *testing.T) {
	l := newFallback(t)
	l.put("rule.yaml", rule("3s"))
	l.serves("before the refusal", "3s")
	if standing := l.refuse(resource.ClusterType, clusterOfA, "bad"); len(standing) > 0 {
		t.Errorf("stands: %v", standing)
	}
	l.serves("after the refusal", "2s", badCluster)
	l.persists(true)
	for range 2 {
		l.next()
		l.serves("the next server", "2s", badCluster)
	}
	l.put("rule.yaml", "# It moved.\n"+rule("3s"))
	l.serves("it moved", "2s", "rule.yaml:2: DestinationRule shop/a: Envoy refused")
	l.put("rule.yaml", "a: [")
	l.serves("its file is bad", "2s", "rule.yaml:1",
		"rule.yaml:2: DestinationRule shop/a: Envoy refused")
	l.put("rule.yaml", rule("4s"))
	l.serves("corrected", "4s")
	l.persists(false)
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	l.serves("refused again", "2s", badCluster)
	if err := os.Remove(filepath.Join(l.objects, "rule.yaml")); err != nil {
		t.Fatal(err)
	}
	l.changes <- []string{l.objects}
	l.changes <- nil
	l.serves("removed", "10s")
	l.persists(false)
}

func TestFallback_SeveralVersionsAreRefused(t *testing.T) {
	l := newFallback(t)
	l.put("rule.yaml", rule("3s"))
	l.put("rule.yaml", rule("4s"))
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	l.serves("the second is refused", "3s", badCluster)
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	l.serves("the first is refused too", "2s", badCluster)
	stale := discovery.RefusedResource{Name: clusterOfA, Version: "0123", Held: true}
	l.server.Refused(resource.ClusterType, []discovery.RefusedResource{stale}, errors.New("bad"))
	l.serves("a late refusal", "2s", badCluster)
}

func TestFallback_NewAndRemovedObjects(t *testing.T) {
	l := newFallback(t)
	if err := os.Remove(filepath.Join(l.objects, "rule.yaml")); err != nil {
		t.Fatal(err)
	}
	l.changes <- []string{l.objects}
	l.changes <- nil
	l.serves("removed", "10s")
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	removed := "rule.yaml:1: DestinationRule shop/a: Envoy refused the Cluster " +
		"outbound|80||a.test: bad; restore it"
	l.serves("the removal is refused", "2s", removed)
	l.persists(true)
	l.next()
	l.serves("the next server", "2s", removed)
	l.put("rule.yaml", rule("5s"))
	l.serves("it is there again", "5s")

	l.put("b.yaml", fmt.Sprintf(webEntry, "b", "10.0.0.2"))
	l.refuse(resource.ClusterType, "outbound|80||b.test", "bad")
	left := "b.yaml:1: ServiceEntry shop/b: Envoy refused the Cluster outbound|80||b.test: bad; " +
		"correct it; it is not in use"
	l.serves("a new object is refused", "5s", left)
	if r := l.newest(resource.ClusterType, "outbound|80||b.test"); r != nil {
		t.Errorf("it is served: %v", r.Origins)
	}
	l.persists(true)
	l.next()
	l.serves("the next server", "5s", left)
	if r := l.newest(resource.ClusterType, "outbound|80||b.test"); r != nil {
		t.Errorf("the next server serves it: %v", r.Origins)
	}
}

// TestFallback_OneOfSeveralObjects reverts the one of several objects that Envoy's error mentions,
// otherwise the whole last change.
func TestFallback_OneOfSeveralObjects(t *testing.T) {
	l := newFallback(t)
	l.put("b.yaml", fmt.Sprintf(webEntry, "b", "10.0.0.2"))
	l.put("routes.yaml", routesTo("a", "/a1")+"---\n"+routesTo("b", "/b1"))
	if got := l.rewrites(); got != "a=/a1 b=/b1" {
		t.Fatalf("at first: %s", got)
	}
	l.put("routes.yaml", routesTo("a", "/a2")+"---\n"+routesTo("b", "/b2"))
	l.refuse(resource.RouteType, "80", "something is wrong with /b2")
	if got := l.rewrites(); got != "a=/a2 b=/b1" {
		t.Errorf("Envoy speaks of b: %s", got)
	}
	problem := "VirtualService shop/b: Envoy refused the RouteConfiguration 80"
	l.reported("Envoy speaks of b", "routes.yaml:6: "+problem)
	l.put("routes.yaml", routesTo("a", "/a3")+"---\n"+routesTo("b", "/b2"))
	if got := l.rewrites(); got != "a=/a3 b=/b1" {
		t.Errorf("a changes: %s", got)
	}
	l.put("routes.yaml", routesTo("a", "/a4")+"---\n"+routesTo("b", "/b4"))
	l.refuse(resource.RouteType, "80", "something is wrong")
	if got := l.rewrites(); got != "a=/a3 b=/b1" {
		t.Errorf("Envoy says nothing: %s", got)
	}
	l.reported("Envoy says nothing", "VirtualService shop/a: Envoy refused",
		"VirtualService shop/b: Envoy refused")
}

func TestFallback_MeshConfig(t *testing.T) {
	l := newRuns(t)
	l.put("", "connectTimeout: 1s")
	l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	l.next()
	feedOf(t, l.server, "sidecar")
	l.put("", "connectTimeout: 2s")
	l.serves("before the refusal", "2s")
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	problem := "mesh.yml:1: Envoy refused the Cluster outbound|80||a.test: bad"
	l.serves("after the refusal", "1s", problem)
	l.persists(true)
	l.next()
	l.serves("the next server", "1s", problem)
	l.next()
	if err := l.server.Configure(l.settings()); err != nil { // before an Envoy connects
		t.Fatal(err)
	}
	l.serves("not tried again", "1s", problem)
	if err := l.server.Configure(l.settings()); err != nil {
		t.Fatal(err)
	}
	l.serves("tried again", "2s")
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	l.serves("refused again", "1s", problem)
	l.put("", "connectTimeout: 3s")
	l.serves("corrected", "3s")
	l.persists(false)
}

// TestFallback_Retries retries refused versions after a reload or a changed certificate.
func TestFallback_Retries(t *testing.T) {
	l := newFallback(t)
	l.put("rule.yaml", rule("3s"))
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	l.serves("after the refusal", "2s", badCluster)
	if err := l.server.Configure(l.settings()); err != nil {
		t.Fatal(err)
	}
	l.serves("tried again", "3s")
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	l.serves("refused again", "2s", badCluster)
}

func TestFallback_OnlyChangesThatCausedTheRefusal(t *testing.T) {
	l := newFallback(t)
	standing := func(what, typeURL, name string, held bool) {
		t.Helper()
		one := discovery.RefusedResource{Name: name, Version: l.newest(typeURL, name).Version,
			Held: held}
		got, _ := l.server.Refused(typeURL, []discovery.RefusedResource{one}, errors.New("bad"))
		if len(got) != 1 || got[0] != name {
			t.Errorf("%s: stands: %q", what, got)
		}
		l.server.Cured(typeURL, []string{name})
	}
	// A new proxy refuses a resource that another one accepted, for example as a port is in use.
	l.newest(resource.ClusterType, clusterOfA).Accept()
	standing("accepted by another", resource.ClusterType, clusterOfA, false)
	l.serves("accepted by another", "2s")
	l.next()
	standing("since the start", resource.ClusterType, clusterOfA, true)
	l.serves("since the start", "2s")
}

// TestFallback_OtherNamespace reverts an object for proxies in another namespace, too.
func TestFallback_OtherNamespace(t *testing.T) {
	l := newFallback(t)
	l.put("rule.yaml", rule("3s"))
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	feed, err := l.server.Feed(node("sidecar", "bank", nil))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the realm is read", func() (bool, string) {
		snapshot, _ := feed.Current()
		r := snapshot.Get(resource.Key{Type: resource.ClusterType, Name: clusterOfA})
		if r == nil {
			return false, "no cluster"
		}
		var cluster clusterv3.Cluster
		if err := proto.Unmarshal(r.Value(), &cluster); err != nil {
			return false, err.Error()
		}
		return cluster.ConnectTimeout.AsDuration().String() == "2s", cluster.ConnectTimeout.String()
	})
}

// TestFallback_PersistsRefusalAtTheEnd ends the server right after a refusal.
func TestFallback_PersistsRefusalAtTheEnd(t *testing.T) {
	l := newFallback(t)
	l.put("rule.yaml", rule("3s"))
	l.refuse(resource.ClusterType, clusterOfA, "bad")
	l.next()
	l.serves("the next server", "2s", badCluster)
}
