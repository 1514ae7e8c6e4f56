package xds

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// bothModes runs a test once with incremental and once with state-of-the-world xDS.
func bothModes(t *testing.T, test func(t *testing.T, delta bool)) {
	t.Run("delta", func(t *testing.T) { test(t, true) })
	t.Run("state", func(t *testing.T) { test(t, false) })
}

// expect waits until the wanted number of pushes was recorded since the last call, and compares the
// pushes with the wanted ones.
func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	eventually(t, "pushes "+strings.Join(want, ", "), func() bool {
		got = append(got, r.take()...)
		return len(got) >= len(want)
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("pushed (-want +got):\n%s", d)
	}
}

func TestEnvoy_FollowsChanges(t *testing.T) {
	bothModes(t, func(t *testing.T, delta bool) {
		one, two, port, other := backend(t, "one"), backend(t, "two"), parts.FreePort(t),
			parts.FreePort(t)
		feed, seen, socket := resource.NewFeed(), &recorder{}, socketPath(t)
		server, _ := serve(t, socket, Options{Source: oneFeed{feed}, Observer: seen})
		envoy := startEnvoy(t, "node", socket, delta)
		feed.Publish(resource.Change{Set: append(site(t, "a", port, one), site(t, "b", other,
			two)...)})
		// After Envoy has accepted the first resources, no further push is expected.
		eventually(t, "first answers", func() bool {
			return ask(port) == "one" &&
				ask(other) == "two"
		})
		seen.take()

		// After a change of endpoints, only the endpoints are sent.
		feed.Publish(resource.Change{Set: []*resource.Resource{encoded(t, "a", assignment("a",
			two))}})
		eventually(t, "answer of the new endpoint", func() bool { return ask(port) == "two" })
		seen.expect(t, "EDS a")

		// If a cluster changes, its endpoints are sent, too. Without them, Envoy would not finish
		// warming the cluster.
		updates := envoy.Stat("cluster_manager.cluster_modified")
		feed.Publish(resource.Change{Set: []*resource.Resource{encoded(t, "a", edsCluster("a",
			3*time.Second))}})
		eventually(t, "changed cluster active", func() bool {
			return envoy.Stat("cluster_manager.cluster_modified") > updates &&
				envoy.Stat("cluster_manager.warming_clusters") == 0 &&
				strings.Contains(envoy.Get("/config_dump?resource=dynamic_active_clusters"), `"3s"`)
		})
		if delta {
			seen.expect(t, "CDS a", "EDS a")
		} else {
			seen.expect(t, "CDS a b", "EDS a")
		}
		if got := ask(port); got != "two" {
			t.Errorf("after the change of the cluster: %s", got)
		}

		// If only the listener changes, its route configuration is not sent.
		updates = envoy.Stat("listener_manager.listener_modified")
		feed.Publish(resource.Change{Set: []*resource.Resource{encoded(t, "a", httpListener(t, "a",
			port, "a", "changed"))}})
		eventually(t, "changed listener active", func() bool {
			return envoy.Stat("listener_manager.listener_modified") > updates &&
				envoy.Stat("listener_manager.total_listeners_warming") == 0
		})
		if delta {
			seen.expect(t, "LDS a")
		} else {
			seen.expect(t, "LDS a b")
		}
		eventually(t, "answer of the changed listener", func() bool {
			return ask(port) == "two" &&
				envoy.Stat("http.changed.downstream_rq_2xx") > 0
		})

		// A change replaces a cluster and moves the routes to the new one. No request fails.
		stop, lost := make(chan struct{}), make(chan string, 1)
		go func() {
			defer close(lost)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got := ask(port); got != "two" && got != "one" {
					lost <- got
					return
				}
			}
		}()
		feed.Publish(resource.Change{
			Set: []*resource.Resource{encoded(t, "c", edsCluster("c", time.Second)), encoded(t, "c",
				assignment("c", one)),
				encoded(t, "a", routes("a", "c"))},
			Remove: []resource.Key{{Type: resource.ClusterType, Name: "a"},
				{Type: resource.EndpointType, Name: "a"}},
		})
		eventually(t, "old cluster gone", func() bool {
			return envoy.Stat("cluster_manager.cluster_removed") == 1 && ask(port) == "one"
		})
		close(stop)
		if got, failed := <-lost; failed {
			t.Errorf("a request was lost in the change: %s", got)
		}
		if delta {
			seen.expect(t, "CDS c", "EDS c", "RDS a", "CDS -a")
		} else {
			seen.expect(t, "CDS a b c", "EDS c", "RDS a", "CDS b c -a")
		}

		// A removed listener no longer accepts connections.
		feed.Publish(resource.Change{Remove: []resource.Key{{Type: resource.ListenerType,
			Name: "a"}}})
		eventually(t, "listener gone", func() bool {
			return strings.Contains(ask(port),
				"refused")
		})

		for _, stream := range server.Status(t.Context()) {
			if stream.Node.GetId() != "node" || stream.Delta != delta || stream.Peer.PID == 0 ||
				len(stream.Types) != 4 {
				t.Errorf("status: %+v", stream)
			}
		}
		if n := envoy.Stat("cluster_manager.cds.update_rejected") +
			envoy.Stat("listener_manager.lds.update_rejected"); n != 0 {
			t.Errorf("Envoy refused %d updates", n)
		}
	})
}

func TestEnvoy_ReconnectsToNewServer(t *testing.T) {
	bothModes(t, func(t *testing.T, delta bool) {
		one, two, port := backend(t, "one"), backend(t, "two"), parts.FreePort(t)
		resources := append(site(t, "a", port, one), site(t, "b", parts.FreePort(t), one)...)
		feed, socket := resource.NewFeed(), socketPath(t)
		_, stop := serve(t, socket, Options{Source: oneFeed{feed}})
		startEnvoy(t, "node", socket, delta)
		feed.Publish(resource.Change{Set: resources})
		eventually(t, "first answer", func() bool { return ask(port) == "one" })
		stop()
		if got := ask(port); got != "one" {
			t.Errorf("while the server is away: %s", got)
		}

		// After a reconnect, the server sends only the resource that has changed, and a response
		// about listeners in any case.
		again, seen := resource.NewFeed(), &recorder{}
		serve(t, socket, Options{Source: oneFeed{again}, Observer: seen})
		eventually(t, "Envoy is back", func() bool {
			var n int
			seen.with(func(r *recorder) { n = len(r.connected) })
			return n > 0
		})
		again.Publish(resource.Change{Set: resources})
		again.Publish(resource.Change{Set: []*resource.Resource{encoded(t, "a", assignment("a",
			two))},
			Remove: []resource.Key{{Type: resource.ListenerType, Name: "b"}}})
		eventually(t, "what changed meanwhile", func() bool { return ask(port) == "two" })
		if delta {
			got := seen.take()
			eventually(t, "removal", func() bool {
				got = append(got, seen.take()...)
				return slices.Contains(got, "LDS -b")
			})
			for _, push := range got {
				if !slices.Contains([]string{"EDS a", "LDS", "LDS -b"}, push) {
					t.Errorf("sent again: %s", push)
				}
			}
		}
	})
}

func TestEnvoy_TwoStreams(t *testing.T) {
	one, two := backend(t, "one"), backend(t, "two")
	port := parts.FreePort(t)
	feed, seen, socket := resource.NewFeed(), &recorder{}, socketPath(t)
	server, _ := serve(t, socket, Options{Source: oneFeed{feed}, Observer: seen})
	first, second := startEnvoy(t, "same", socket, true), startEnvoy(t, "same", socket, false)
	// Two Envoys listen on one port, as two overlapping epochs do (SO_REUSEPORT is Envoy's
	// default).
	feed.Publish(resource.Change{Set: site(t, "a", port, one)})
	for _, envoy := range []*parts.EnvoyProcess{first, second} {
		eventually(t, "listener",
			func() bool { return envoy.Stat("listener_manager.total_listeners_active") == 1 })
	}
	eventually(t, "both streams at rest", func() bool {
		all := server.Status(t.Context())
		for _, s := range all {
			for _, typ := range s.Types {
				if typ.Pending != 0 || typ.VersionSent != typ.VersionAccepted {
					return false
				}
			}
		}
		return len(all) == 2
	})
	seen.take()
	feed.Publish(resource.Change{Set: []*resource.Resource{encoded(t, "a", assignment("a", two))}})
	seen.expect(t, "EDS a", "EDS a")
	eventually(t, "new endpoint", func() bool { return ask(port) == "two" })
	eventually(t, "convergence of both",
		func() bool { return server.Stats().ConvergenceTime.Count >= 2 })
	if stats := server.Stats(); stats.Streams != 2 ||
		stats.Types[resource.EndpointType].Pushes < 4 {
		t.Errorf("stats: %+v", stats)
	}
}
