package agent

import (
	"context"
	"errors"
	"net"
	"strings"

	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/xds"
)

// newEndpoints returns the tracker of endpoints that refuse connections or do not answer.
func newEndpoints(
	b *base, state *reloadState, supervisor *epoch.Supervisor, mesh *discovery.Server,
) *endpoints.Tracker {
	return endpoints.New(endpoints.Options{
		ReadCounters: func(ctx context.Context) (endpoints.Snapshot, error) {
			return endpointCounters(ctx, supervisor)
		},
		RequestsWithoutEndpoint: func(ctx context.Context) (map[string]uint64, error) {
			return emptyClusters(ctx, supervisor)
		},
		EnvoyHasNoFailureLog: func() bool {
			c := state.InForce().Config
			return c.Envoy.Enabled && !reportsFailures(c)
		},
		ProvidersByCluster: func() map[string]string {
			c := state.InForce().Config
			if !c.Envoy.Enabled || len(c.Discovery.Addresses) > 0 {
				return nil
			}
			return mesh.ExtensionProvidersByCluster()
		},
		ReadDroppedTelemetry: func(ctx context.Context) (endpoints.DroppedTelemetry, error) {
			return dropped(ctx, supervisor)
		},
		Conditions: b.board, Logger: b.logOf("endpoints"),
	})
}

// endpointCounters reads the counters of all endpoints of the live epoch.
func endpointCounters(
	ctx context.Context, supervisor *epoch.Supervisor,
) (endpoints.Snapshot, error) {
	live, ok := liveEpoch(supervisor)
	if !ok || live.AdminLost {
		return endpoints.Snapshot{}, errors.New("no Envoy answers on its admin interface")
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	body, err := envoy.NewAdmin(live.AdminAddress).Get(ctx, "/clusters?format=json")
	if err != nil {
		return endpoints.Snapshot{}, err
	}
	return endpoints.ParseClusters(body, live.Number)
}

// dropped returns how many log entries and spans the live epoch has dropped.
func dropped(ctx context.Context, supervisor *epoch.Supervisor) (endpoints.DroppedTelemetry,
	error) {
	live, ok := liveEpoch(supervisor)
	if !ok || live.AdminLost {
		return endpoints.DroppedTelemetry{}, errors.New("no Envoy answers on its admin interface")
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	counts, err := envoy.NewAdmin(live.AdminAddress).Stats(ctx, endpoints.DroppedTelemetryFilter)
	return endpoints.DroppedTelemetry{Epoch: live.Number, Counts: counts}, err
}

// emptyClusters returns, by cluster, how often the live epoch found no healthy endpoint.
func emptyClusters(
	ctx context.Context, supervisor *epoch.Supervisor,
) (map[string]uint64, error) {
	live, ok := liveEpoch(supervisor)
	if !ok || live.AdminLost {
		return nil, errors.New("no Envoy answers on its admin interface")
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	const suffix = ".upstream_cx_none_healthy" // follows the cluster's name and a semicolon
	stats, err := envoy.NewAdmin(live.AdminAddress).Stats(ctx,
		`^cluster\.(in|out)bound\|.*\`+suffix+"$")
	found := map[string]uint64{}
	for name, count := range stats {
		if count > 0 {
			cluster := strings.TrimSuffix(strings.TrimPrefix(name, "cluster."), suffix)
			found[strings.TrimSuffix(cluster, ";")] = count
		}
	}
	return found, err
}

// receiveFailures returns the function that registers the gRPC service to which Envoy reports
// failed requests.
func receiveFailures(
	tracker *endpoints.Tracker, own func(uid uint32) bool,
) func(grpc.ServiceRegistrar) {
	service := &endpoints.FailureService{OnFailure: tracker.RecordFailure,
		IsOwnEnvoy: func(peer net.Addr) bool { return own(xds.PeerOfAddress(peer).UID) }}
	return func(to grpc.ServiceRegistrar) { alsv3.RegisterAccessLogServiceServer(to, service) }
}
