package backend

import (
	"context"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/driver"
)

// countTime bounds the request to Envoy for its cluster statistics.
const countTime = time.Second

// mostCounted is the number of services up to which each status requests cluster statistics from
// Envoy: the filter makes Envoy scan all its statistics.
const mostCounted = 1000

// liveFilter selects the cluster statistics that explain.Live needs.
const liveFilter = `^cluster\.(in|out)bound\|.*\.(membership_total|update_(success|failure)|` +
	`ssl\.(handshake|fail_verify_error|fail_verify_san|connection_error))$`

// counted returns the live epoch's statistics by cluster name, or nil if they are unavailable.
// Clusters whose membership_total [telemetry] excludes are missing.
func (b *Backend) counted(ctx context.Context) map[string]explain.Live {
	live, ok := b.Proxy.Epoch()
	if !ok || live.AdminLost {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	stats, err := driver.NewAdmin(live.AdminAddress).Stats(ctx, liveFilter)
	if err != nil {
		return nil
	}
	return countedOf(stats)
}

func countedOf(stats map[string]uint64) map[string]explain.Live {
	all := map[string]explain.Live{}
	for name, endpoints := range stats {
		cluster, ok := strings.CutSuffix(name, ".membership_total")
		if !ok {
			continue
		}
		count := func(field string) uint64 { return stats[cluster+"."+field] }
		all[strings.TrimSuffix(strings.TrimPrefix(cluster, "cluster."), ";")] = explain.Live{
			Endpoints: endpoints, Resolved: count("update_success")+count("update_failure") > 0,
			Handshakes: count("ssl.handshake"), Untrusted: count("ssl.fail_verify_error"),
			OtherName: count("ssl.fail_verify_san"), Faulty: count("ssl.connection_error"),
		}
	}
	return all
}

// problems returns all problems of the mesh configuration, including, if live is set, those that
// only the statistics of a running Envoy show.
func (b *Backend) problems(ctx context.Context, live bool) []discovery.Problem {
	found := slices.Concat(b.Discovery.Problems(), b.exposed(), b.Unbound.Problems(),
		b.failing())
	found = append(found, certificateProblems(b.Identity.Secrets(), found)...)
	slices.SortFunc(found, discovery.Problem.Compare)
	node := b.Ports.LastNode()
	if node == nil || !live {
		return found
	}
	shown, err := b.Discovery.LiveProblems(node, b.counted(ctx))
	if err != nil || len(shown) == 0 {
		return found
	}
	found = append(found, shown...)
	slices.SortFunc(found, discovery.Problem.Compare)
	return found
}

// failing returns a problem for each endpoint that fails.
func (b *Backend) failing() []discovery.Problem {
	var problems []discovery.Problem
	for _, p := range b.Endpoints.Problems() {
		problems = append(problems, discovery.Problem{Severity: condition.Warning,
			Message: p.String(), Cure: "start it, or correct its address"})
	}
	return problems
}
