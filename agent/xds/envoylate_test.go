package xds

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// silent returns a port that accepts connections and never responds.
func silent(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

// TestEnvoy_RefusesTwoVersionsLate delays Envoy's acknowledgements of clusters by a cluster whose
// health check gets no response. So Envoy refuses two successive versions of another cluster after
// the second one was sent.
func TestEnvoy_RefusesTwoVersionsLate(t *testing.T) {
	bothModes(t, func(t *testing.T, delta bool) {
		one, port := backend(t, "one"), parts.FreePort(t)
		feed, seen, socket := resource.NewFeed(), &recorder{}, socketPath(t)
		server, _ := serve(t, socket, Options{Source: oneFeed{feed}, Observer: seen})
		startEnvoy(t, "node", socket, delta)
		feed.Publish(resource.Change{Set: site(t, "a", port, one)})
		eventually(t, "first answer", func() bool { return ask(port) == "one" })
		snapshot, _ := feed.Current()
		accepted := snapshot.ByType(resource.ClusterType)["a"]

		waits := edsCluster("waits", time.Second)
		waits.HealthChecks = []*corev3.HealthCheck{{Timeout: durationpb.New(time.Minute),
			Interval:         durationpb.New(time.Minute),
			HealthyThreshold: wrapperspb.UInt32(1), UnhealthyThreshold: wrapperspb.UInt32(1),
			HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{
				HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{Path: "/"}}}}
		bad := func(timeout time.Duration) *resource.Resource {
			c := edsCluster("a", timeout)
			c.TransportSocket = &corev3.TransportSocket{Name: "unknown",
				ConfigType: &corev3.TransportSocket_TypedConfig{
					TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/outrider.test.Unknown"}}}
			return encoded(t, "a", c)
		}
		unanswered := func(
			n uint64) func() bool {
			return func() bool { return server.Stats().UnansweredResponses >= n }
		}
		feed.Publish(resource.Change{Set: []*resource.Resource{bad(time.Second), encoded(t, "waits",
			waits), encoded(t, "waits", assignment("waits", silent(t)))}})
		eventually(t, "no answer", unanswered(1))
		newest := bad(2 * time.Second)
		feed.Publish(resource.Change{Set: []*resource.Resource{newest}})
		eventually(t, "no answer to the next either", unanswered(2))
		seen.with(func(r *recorder) {
			if len(r.refusals) > 0 {
				t.Errorf("refused already: %+v", r.refusals)
			}
		})
		feed.Publish(resource.Change{Remove: []resource.Key{{Type: resource.ClusterType,
			Name: "waits"}, {Type: resource.EndpointType, Name: "waits"}}})
		eventually(t, "the refusal of the newest", func() (refused bool) {
			seen.with(func(r *recorder) {
				refused = slices.ContainsFunc(r.refusals, func(one Refusal) bool {
					return slices.Equal(one.Versions, []string{newest.Version}) &&
						slices.Equal(one.VersionsInUse, []string{accepted.Version})
				})
			})
			return refused
		})
		eventually(t, "rest", func() bool {
			for _, typ := range server.Status(t.Context())[0].Types {
				if typ.Pending != 0 {
					return false
				}
			}
			return true
		})
		seen.with(func(r *recorder) {
			for _, refusal := range r.refusals {
				if len(refusal.Resources) != 1 || refusal.Resources[0] != "a" ||
					!strings.Contains(refusal.Error, "outrider.test.Unknown") {
					t.Errorf("refused: %+v", refusal)
				}
			}
		})
		if got := ask(port); got != "one" {
			t.Errorf("afterwards: %s", got)
		}
	})
}
