package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// homeEntry is an object that names no namespace, and is visible only in the namespace that it
// gets.
const homeEntry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: home}
spec: {hosts: [home.test], exportTo: ["."], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: %s}]}
`

// TestNamespaces_ProxiesMoveToAnother serves proxies of the previous and of the next namespace at
// the same time. Each gets the private objects of its own namespace, whether the reload succeeds or
// not.
func TestNamespaces_ProxiesMoveToAnother(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "home.yaml")
	write(t, path, fmt.Sprintf(homeEntry, "10.0.0.1"))
	synctest.Test(t, func(t *testing.T) {
		namespaces := []string{"one"}
		server, changes := start(t, discovery.Options{Files: []string{directory},
			ProxyNamespaces: func() []string { return namespaces },
			Settings:        discovery.Settings{Namespace: "one"}})
		feedOf := func(namespace string) *resource.Feed {
			t.Helper()
			feed, err := server.Feed(node("sidecar", namespace, nil))
			if err != nil {
				t.Fatal(err)
			}
			return feed
		}
		serves := func(when string, feed *resource.Feed, address string) {
			t.Helper()
			synctest.Wait()
			snapshot, _ := feed.Current()
			found := snapshot.Get(resource.Key{Type: resource.EndpointType,
				Name: "outbound|80||home.test"})
			if address == "" && found != nil || address != "" && (found == nil ||
				!strings.Contains(readableResource(t, found), address)) {
				t.Errorf("%s: %v, want %q", when, found, address)
			}
		}
		put := func(text string) {
			write(t, path, text)
			changes <- []string{path}
			changes <- nil // the server receives this once it has processed the previous change
		}
		one := feedOf("one")
		defer one.AddWatcher()()
		serves("at first", one, "10.0.0.1")

		namespaces = []string{"one", "two"}
		two := feedOf("two")
		leave := two.AddWatcher()
		serves("the next namespace", two, "10.0.0.1")
		serves("the former one", one, "10.0.0.1")
		put(fmt.Sprintf(homeEntry, "10.0.0.2"))
		serves("a change in the next namespace", two, "10.0.0.2")
		serves("a change in the former one", one, "10.0.0.2")
		serves("a stranger", feedOf("three"), "")

		leave() // a refused reload ends the epoch in the new namespace
		put(fmt.Sprintf(homeEntry, "10.0.0.3"))
		serves("after a refusal", one, "10.0.0.3")
		if problems := server.Problems(); len(problems) > 0 {
			t.Errorf("problems: %v", problems)
		}

		two = feedOf("two")
		defer two.AddWatcher()()
		synctest.Wait()
		before, _ := two.Current()
		if err := server.Configure(discovery.Settings{Namespace: "two"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if now, _ := two.Current(); feedOf("two") != two || now.Sequence != before.Sequence {
			t.Errorf("the reload changed resources of the new epoch: %v, %v", before, now)
		}
		// MeshConfig changes for the proxies of both namespaces.
		mesh := filepath.Join(t.TempDir(), "mesh.yaml")
		write(t, mesh, "connectTimeout: 7s\n")
		if err := server.Configure(discovery.Settings{Namespace: "two",
			MeshConfigFile: mesh}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, feed := range []*resource.Feed{one, two} {
			snapshot, _ := feed.Current()
			var cluster clusterv3.Cluster
			if err := proto.Unmarshal(snapshot.Get(resource.Key{Type: resource.ClusterType,
				Name: "outbound|80||home.test"}).EncodedMessage(), &cluster); err != nil ||
				cluster.ConnectTimeout.AsDuration() != 7*time.Second {
				t.Errorf("a changed MeshConfig: %v, %v", &cluster, err)
			}
		}
		put("a: [") // the last good version for each proxy stays in force
		serves("a file that is bad, in the next namespace", feedOf("two"), "10.0.0.3")
		serves("a file that is bad, in the former one", one, "10.0.0.3")
		put(fmt.Sprintf(homeEntry, "10.0.0.4"))
		serves("in the next namespace", feedOf("two"), "10.0.0.4")
		serves("in the former one", one, "10.0.0.4")
		if stats := server.Stats(); stats.Services != 1 || stats.Objects["ServiceEntry"] != 1 {
			t.Errorf("two namespaces count for one: %+v", stats)
		}

		// The settings get a namespace before there is a proxy in it.
		if err := server.Configure(discovery.Settings{Namespace: "four"}); err != nil {
			t.Fatal(err)
		}
		serves("set at once", feedOf("four"), "10.0.0.4")

		time.Sleep(time.Hour)
		put(fmt.Sprintf(homeEntry, "10.0.0.5"))
		// a proxy that still watches the feed of namespace two, which is no longer configured, is
		// served
		serves("of a namespace that nobody is in any more", feedOf("two"), "10.0.0.5")
		serves("a stranger to all", feedOf("three"), "")
	})
}
