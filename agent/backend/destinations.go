package backend

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/envoy"
)

// countTime bounds the request to Envoy for its cluster statistics.
const countTime = time.Second

// Up to mostCounted services each status requests cluster statistics from Envoy, beyond it once in
// countPeriod: the filter makes Envoy scan all its statistics.
const (
	mostCounted = 1000
	countPeriod = time.Minute
)

// liveProblems are the last problems that only the statistics of a running Envoy show.
type liveProblems struct {
	mu      sync.Mutex
	counted time.Time
	found   []discovery.Problem
}

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
	stats, err := envoy.NewAdmin(live.AdminAddress).Stats(ctx, liveFilter)
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

// problems returns all problems of the mesh configuration. Those that only the statistics of a
// running Envoy show are of now, or else of the last minute.
func (b *Backend) problems(ctx context.Context, now bool) []discovery.Problem {
	found := slices.Concat(b.Discovery.Problems(), b.exposed(), b.Unbound.Problems(),
		b.failing())
	found = append(found, certificateProblems(b.Identity.Secrets(), found)...)
	found = append(found, b.counts(ctx, now)...)
	slices.SortFunc(found, discovery.Problem.Compare)
	return found
}

func (b *Backend) counts(ctx context.Context, now bool) []discovery.Problem {
	node := b.Ports.LastNode()
	if node == nil {
		return nil
	}
	b.live.mu.Lock()
	defer b.live.mu.Unlock()
	if now || time.Since(b.live.counted) > countPeriod {
		b.live.counted = time.Now()
		b.live.found = nil
		if found, err := b.Discovery.LiveProblems(node, b.counted(ctx)); err == nil {
			b.live.found = found
		}
	}
	return b.live.found
}

// failing returns a problem for each endpoint that fails.
func (b *Backend) failing() []discovery.Problem {
	var problems []discovery.Problem
	for _, p := range b.Endpoints.Problems() {
		problems = append(problems, discovery.Problem{Severity: condition.Warning,
			Message: p.String(), Fix: "start it, or correct its address"})
	}
	return problems
}
