package agent

import (
	"context"
	"errors"
	"net"
	"strings"

	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/xds"
)

// newEndpoints returns the part that tracks endpoints which refuse connections or do not answer.
func (a *Agent) newEndpoints() *endpoints.Tracker {
	return endpoints.New(endpoints.Options{
		Read: a.endpointCounters, Empty: a.emptyClusters,
		Blind: func() bool {
			c := a.reloader.InForce().Config
			return c.Envoy.Enabled && !reportsFailures(c)
		},
		Board: a.board, Logger: a.logOf("endpoints"),
	})
}

// endpointCounters reads the counters of all endpoints from the live epoch.
func (a *Agent) endpointCounters(ctx context.Context) (endpoints.Snapshot, error) {
	live, ok := a.proxy.Epoch()
	if !ok || live.AdminLost {
		return endpoints.Snapshot{}, errors.New("no epoch answers")
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	body, err := envoy.NewAdmin(live.AdminAddress).Get(ctx, "/clusters?format=json")
	if err != nil {
		return endpoints.Snapshot{}, err
	}
	return endpoints.Parse(body, live.Number)
}

// emptyClusters returns by cluster how often the live epoch found no healthy endpoint in it.
func (a *Agent) emptyClusters(ctx context.Context) (map[string]uint64, error) {
	live, ok := a.proxy.Epoch()
	if !ok || live.AdminLost {
		return nil, errors.New("no epoch answers")
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	const suffix = ".upstream_cx_none_healthy" // after the semicolon that ends a cluster's name
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

// receiveFailures returns the function that registers the service for Envoy's failed requests.
func (a *Agent) receiveFailures(c *config.Config) func(grpc.ServiceRegistrar) {
	own := a.isOwn(c)
	service := &endpoints.Service{Report: a.endpoints.Report,
		Own: func(peer net.Addr) bool { return own(xds.PeerOf(peer).UID) }}
	return func(to grpc.ServiceRegistrar) { alsv3.RegisterAccessLogServiceServer(to, service) }
}
