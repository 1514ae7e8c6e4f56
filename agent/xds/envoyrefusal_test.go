package xds

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

func TestEnvoy_RefusesOneListener(t *testing.T) {
	bothModes(t, func(t *testing.T, delta bool) {
		one, port, second, third := backend(t, "one"), parts.FreePort(t), parts.FreePort(t),
			parts.FreePort(t)
		feed, seen, socket := resource.NewFeed(), &recorder{}, socketPath(t)
		server, _ := serve(t, socket, Options{Source: oneFeed{feed}, Observer: seen})
		envoy := startEnvoy(t, "node", socket, delta)
		feed.Publish(resource.Change{Set: append(site(t, "a", port, one), site(t, "b", second,
			one)...)})
		eventually(t, "first answers", func() bool {
			return ask(port) == "one" &&
				ask(second) == "one"
		})

		origin := resource.Origin{File: "mesh.d/b.yaml", Line: 3, Kind: "Gateway",
			Namespace: "default", Name: "b"}
		feed.Publish(resource.Change{Set: append(site(t, "c", third, one), encoded(t, "b",
			badListener(t, "b", second), origin))})
		eventually(t, "refusal", func() bool {
			var n int
			seen.with(func(r *recorder) { n = len(r.refusals) })
			return n > 0
		})
		eventually(t, "the rest of the change", func() bool { return ask(third) == "one" })
		if got := ask(second); got != "one" {
			t.Errorf("the accepted version of the refused listener: %s", got)
		}
		seen.with(func(r *recorder) {
			got := r.refusals[0]
			if len(r.refusals) != 1 || !slices.Equal(got.Resources, []string{"b"}) ||
				got.Type != resource.ListenerType ||
				!slices.Equal(got.Origins, []resource.Origin{origin}) ||
				!strings.Contains(got.Error, "outrider.test.Unknown") {
				t.Errorf("refusals: %+v", r.refusals)
			}
		})
		var refused []RefusedResource
		eventually(t, "status", func() bool {
			refused = nil
			settled := true
			for _, stream := range server.Status(t.Context()) {
				for _, typ := range stream.Types {
					refused = append(refused, typ.Refused...)
					settled = settled && typ.Pending == 0 && typ.VersionSent == typ.VersionAccepted
				}
			}
			return settled && len(refused) == 1
		})
		if r := refused[0]; r.Name != "b" || r.Accepted == "" || r.Accepted == r.Version ||
			len(r.Origins) != 1 {
			t.Errorf("status: %+v", r)
		}
		rejected := envoy.Stat("listener_manager.lds.update_rejected")

		// Later changes do not send the refused listener again.
		feed.Publish(resource.Change{Set: []*resource.Resource{encoded(t, "a", httpListener(t, "a",
			port, "a", "later"))}})
		eventually(t, "later change", func() bool {
			return ask(port) == "one" &&
				envoy.Stat("http.later.downstream_rq_2xx") > 0
		})
		if got := envoy.Stat("listener_manager.lds.update_rejected"); got != rejected {
			t.Errorf("the refused listener was sent again: %d refusals after %d", got, rejected)
		}

		// A corrected version of the listener is sent and accepted.
		feed.Publish(resource.Change{Set: []*resource.Resource{encoded(t, "b", httpListener(t, "b",
			second, "b", "fixed"))}})
		eventually(t, "corrected listener", func() bool {
			return ask(second) == "one" &&
				envoy.Stat("http.fixed.downstream_rq_2xx") > 0
		})
		eventually(t, "cure", func() bool {
			var recovered []string
			seen.with(func(r *recorder) { recovered = slices.Clone(r.recovered) })
			return slices.Equal(recovered, []string{"LDS[b]"})
		})
	})
}

func TestEnvoy_RefusesOneCluster(t *testing.T) {
	for _, test := range []struct {
		name string
		bad  func(t *testing.T) *resource.Resource
		says string
	}{
		{"named in the error", func(t *testing.T) *resource.Resource {
			c := edsCluster("b", time.Second)
			c.TransportSocket = &corev3.TransportSocket{Name: "unknown",
				ConfigType: &corev3.TransportSocket_TypedConfig{
					TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/outrider.test.Unknown"}}}
			return encoded(t, "b", c)
		}, "outrider.test.Unknown"},
		// the protobuf message itself is invalid, so Envoy refuses the whole response without
		// naming the resource
		{"not named", func(t *testing.T) *resource.Resource {
			value, err := proto.Marshal(edsCluster("b", -time.Second))
			if err != nil {
				t.Fatal(err)
			}
			return resource.FromEncoded(resource.ClusterType, "b", value)
		}, "Invalid duration"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothModes(t, func(t *testing.T, delta bool) {
				one, first, third := backend(t, "one"), parts.FreePort(t), parts.FreePort(t)
				feed, seen, socket := resource.NewFeed(), &recorder{}, socketPath(t)
				server, _ := serve(t, socket, Options{Source: oneFeed{feed}, Observer: seen})
				startEnvoy(t, "node", socket, delta)
				feed.Publish(resource.Change{Set: site(t, "a", first, one)})
				eventually(t, "first answer", func() bool { return ask(first) == "one" })

				feed.Publish(resource.Change{Set: append(site(t, "c", third, one), test.bad(t))})
				eventually(t, "the rest of the change", func() bool { return ask(third) == "one" })
				eventually(t, "refusal", func() bool {
					var refusals []Refusal
					seen.with(func(r *recorder) { refusals = slices.Clone(r.refusals) })
					return len(refusals) == 1 && slices.Equal(refusals[0].Resources,
						[]string{"b"}) && strings.Contains(refusals[0].Error, test.says)
				})
				eventually(t, "rest", func() bool {
					for _, typ := range server.Status(t.Context())[0].Types {
						if typ.Pending != 0 || typ.VersionSent != typ.VersionAccepted {
							return false
						}
					}
					return true
				})
				if got := ask(first); got != "one" {
					t.Errorf("afterwards: %s", got)
				}
			})
		})
	}
}
