package discovery_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/resource"
)

// refusedEdits are edits of mesh files. An old version of Envoy refuses their resources of some
// types.
var refusedEdits = []struct {
	name, file, text string
	types            string // types of the refused resources
}{
	{"VirtualService", "routes.yaml", routesTo("a", "/next"), "RouteConfiguration"},
	{"VirtualService without a rewrite", "routes.yaml",
		virtualService("route: [{destination: {host: a.test}}]"), "RouteConfiguration"},
	{"retries", "routes.yaml", virtualService("route: [{destination: {host: a.test}}], " +
		"retries: {attempts: 5}"), "RouteConfiguration"},
	{"fault", "routes.yaml", virtualService("route: [{destination: {host: a.test}}], " +
		"fault: {abort: {httpStatus: 418, percentage: {value: 1}}}"), "RouteConfiguration"},
	{"mirror", "routes.yaml", virtualService("route: [{destination: {host: a.test}}], " +
		"mirror: {host: b.test}"), "RouteConfiguration"},
	{"direct response", "routes.yaml", virtualService("directResponse: {status: 418}"),
		"RouteConfiguration"},
	{"headers", "routes.yaml", virtualService("route: [{destination: {host: a.test}}], " +
		"headers: {request: {set: {x: y}}}"), "RouteConfiguration"},
	{"connect timeout", "rule.yaml", rule("9s"), "Cluster"},
	{"outlier detection", "rule.yaml", destinationRule("outlierDetection: {consecutive5xxErrors: 3}"),
		"Cluster"},
	{"load balancer", "rule.yaml", destinationRule("loadBalancer: {simple: RANDOM}"), "Cluster"},
	{"origination of TLS", "rule.yaml", destinationRule("tls: {mode: SIMPLE}"), "Cluster"},
	{"subsets", "rule.yaml", strings.Replace(rule("1s"), "host: a.test,",
		"host: a.test, subsets: [{name: v1, labels: {version: v1}}],", 1), "Cluster"},
	{"DNS", "a.yaml", strings.ReplaceAll(fmt.Sprintf(webEntry, "a", "a.example"), "STATIC", "DNS"),
		"Cluster"},
	{"endpoint", "a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.9"), "ClusterLoadAssignment"},
	{"another service", "c.yaml", fmt.Sprintf(webEntry, "c", "10.0.0.3"), "Cluster"},
	{"another service, whose routes are refused", "c.yaml", fmt.Sprintf(webEntry, "c", "10.0.0.3"),
		"RouteConfiguration"},
	{"another port", "c.yaml", strings.ReplaceAll(fmt.Sprintf(webEntry, "c", "10.0.0.3"), "number: 80",
		"number: 81"), "Listener"},
	{"no service", "b.yaml", "", "RouteConfiguration"},
	{"EnvoyFilter of a listener", "filter.yaml", luaFilter("next"), "Listener"},
	{"MeshConfig", "", "connectTimeout: 7s\naccessLogFile: /dev/stderr\n", "Cluster Listener"},
	{"STRICT", "strict.yaml", strict, "Listener"},
}

func virtualService(route string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec: {hosts: [a.test], http: [{%s}]}
`, route)
}

func destinationRule(policy string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a, namespace: shop}
spec: {host: a.test, trafficPolicy: {%s}}
`, policy)
}

// TestRefusal_ConcernsNoOtherVersion serves two versions of Envoy. The old version refuses the
// resources that an edit changes; the new version gets them at once. The old version retains the
// earlier resources, and everything to which they refer. New epochs of each version get the same
// resources as the running ones, also from the next server.
func TestRefusal_ConcernsNoOtherVersion(t *testing.T) {
	for _, test := range refusedEdits {
		t.Run(test.name, func(t *testing.T) {
			l := newRuns(t)
			l.put("", "")
			l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
			l.put("b.yaml", fmt.Sprintf(webEntry, "b", "10.0.0.2"))
			l.put("rule.yaml", rule("1s"))
			l.put("routes.yaml", routesTo("a", "/a")+"---\n"+routesTo("b", "/b"))
			l.put("ports.yaml", fmt.Sprintf(twoPorts, "HTTP"))
			l.next()
			f := serveFleet(t, l.server)
			var mu sync.Mutex
			known := map[string]bool{} // versions of resources that the proxies had before the edit
			edited := false
			refuses := func(r *resource.Resource) bool {
				mu.Lock()
				defer mu.Unlock()
				return edited && !known[r.Name+r.Version] &&
					strings.Contains(test.types, resource.TypeName(r.Type))
			}
			accepts := func(*resource.Resource) bool { return false }
			old, next := f.connect(identityNode(39), refuses), f.connect(identityNode(40), accepts)
			newest := func(n *corev3.Node) map[resource.Key]string { return newestFor(t, l.server, n) }
			first := newest(identityNode(40))
			old.has("the old one at first", first)
			next.has("the new one at first", first)
			mu.Lock()
			edited = true
			for key, version := range first {
				known[key.Name+version] = true
			}
			mu.Unlock()

			l.put(test.file, test.text)
			after := newest(identityNode(40))
			if maps.Equal(first, after) {
				t.Fatal("the edit changes nothing")
			}
			next.has("the new one", after)
			eventually(t, "the refusal", func() (bool, string) {
				return old.refused() > 0, ""
			})
			l.persists()
			for key, version := range first {
				if !strings.Contains(test.types, resource.TypeName(key.Type)) {
					continue
				}
				if r := old.get(key.Type, key.Name); after[key] != "" && (r == nil || r.Version != version) {
					t.Errorf("the refusing one has another %s", key.Name)
				}
			}
			hasRoutes(t, "the refusing one", old)
			if feed, _ := l.server.Feed(identityNode(40)); len(current(feed).AllRefused()) > 0 {
				t.Error("the other version refuses something")
			}
			epoch := f.connect(identityNode(39), refuses)
			epoch.has("a new epoch of the refusing one", old.versions())
			f.connect(identityNode(40), accepts).has("a new epoch of the other", after)
			if epoch.refused() > 0 {
				t.Error("a new epoch gets what was refused")
			}
			has := old.versions()

			l.next()
			f = serveFleet(t, l.server)
			again := f.connect(identityNode(39), refuses)
			again.has("the next server", has)
			f.connect(identityNode(40), accepts).has("the other, of the next server", after)
			if again.refused() > 0 {
				t.Error("the next server sends what was refused")
			}
			f.connect(identityNode(41), refuses).has("a newer version", has)
		})
	}
}

func current(feed *resource.Feed) *resource.Snapshot {
	snapshot, _ := feed.Current()
	return snapshot
}

// hasRoutes checks that a proxy has the routes of its listeners.
func hasRoutes(t *testing.T, what string, p *proxy) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, r := range p.held {
		if key.Type == resource.ListenerType {
			for _, name := range routesOf(r) {
				if p.held[resource.Key{Type: resource.RouteType, Name: name}] == nil {
					t.Errorf("%s: no routes %s for listener %s", what, name, key.Name)
				}
			}
		}
	}
}

// TestRefusal_WhatTheAcceptedVersionNeedsStays: an edit removes a service, and changes routes in a
// way that Envoy refuses. The service's cluster stays as long as the accepted routes refer to it,
// also for new epochs and in the next server. An unrelated listener is removed at once.
func TestRefusal_WhatTheAcceptedVersionNeedsStays(t *testing.T) {
	l := newRuns(t)
	l.put("", "")
	l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	l.put("b.yaml", fmt.Sprintf(webEntry, "b", "10.0.0.2"))
	l.put("c.yaml", strings.ReplaceAll(fmt.Sprintf(webEntry, "c", "10.0.0.3"), "number: 80",
		"number: 81"))
	l.put("routes.yaml", strings.ReplaceAll(routesTo("a", "/old"), "host: a.test}}", "host: b.test}}"))
	l.next()
	f := serveFleet(t, l.server)
	refuses := func(r *resource.Resource) bool {
		return r.Type == resource.RouteType && strings.Contains(string(r.EncodedMessage()), "/bad")
	}
	n := node("sidecar", "shop", map[string]any{"app": "edge"})
	p := f.connect(n, refuses)
	p.has("at first", newestFor(t, l.server, n))

	must(t, os.Remove(filepath.Join(l.objects, "b.yaml")))
	must(t, os.Remove(filepath.Join(l.objects, "c.yaml")))
	write(t, filepath.Join(l.objects, "routes.yaml"), routesTo("a", "/bad"))
	l.changes <- []string{l.objects}
	l.changes <- nil
	const clusterOfB = "outbound|80||b.test"
	holds := func(what string, p *proxy) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			routes := p.get(resource.RouteType, "80")
			return routes != nil && strings.Contains(string(routes.EncodedMessage()), "/old") &&
				p.get(resource.ClusterType, clusterOfB) != nil &&
				p.get(resource.EndpointType, clusterOfB) != nil &&
				p.get(resource.ListenerType, "0.0.0.0_81") == nil &&
				p.get(resource.ClusterType, "outbound|81||c.test") == nil, fmt.Sprint(p.versions())
		})
	}
	holds("the running proxy", p)
	l.reported("the running proxy", "VirtualService shop/a: Envoy refused the RouteConfiguration 80",
		"VirtualService shop/a: Envoy refused the RouteConfiguration 9000")
	holds("a new epoch", f.connect(n, refuses))
	l.persists()
	l.next()
	f = serveFleet(t, l.server)
	p = f.connect(n, refuses)
	holds("the next server", p)
	l.put("routes.yaml", routesTo("a", "/good"))
	eventually(t, "corrected", func() (bool, string) {
		return p.get(resource.ClusterType, clusterOfB) == nil &&
			strings.Contains(string(p.get(resource.RouteType, "80").EncodedMessage()), "/good"), ""
	})
	l.reported("corrected")
}
