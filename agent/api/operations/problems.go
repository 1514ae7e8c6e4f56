package operations

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/envoy"
)

// countTime bounds the request to Envoy for its cluster statistics.
const countTime = time.Second

// A status request reads the statistics of Envoy's clusters, for which Envoy scans all its
// statistics. With more than MaxServicesForFreshStats services they are read at most once per
// countPeriod.
const (
	MaxServicesForFreshStats = 1000
	countPeriod              = time.Minute
)

// liveProblems caches the problems that only the statistics of a running Envoy show.
type liveProblems struct {
	mu      sync.Mutex
	counted time.Time
	found   []discovery.Problem
}

// liveFilter selects the cluster statistics that explain.ClusterStats needs.
const liveFilter = `^cluster\.(in|out)bound\|.*\.(membership_total|update_(success|failure)|` +
	`ssl\.(handshake|fail_verify_error|fail_verify_san|connection_error))$`

// counted returns the live epoch's statistics by cluster name, or nil if they are unavailable. A
// cluster is missing if [telemetry] excludes its statistic membership_total.
func (o *MeshOperations) counted(ctx context.Context) map[string]explain.ClusterStats {
	live, ok := o.Proxy.Epoch()
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

func countedOf(stats map[string]uint64) map[string]explain.ClusterStats {
	all := map[string]explain.ClusterStats{}
	for name, total := range stats {
		cluster, ok := strings.CutSuffix(name, ".membership_total")
		if !ok {
			continue
		}
		count := func(field string) uint64 { return stats[cluster+"."+field] }
		all[strings.TrimSuffix(strings.TrimPrefix(cluster, "cluster."),
			";")] = explain.ClusterStats{
			Endpoints: total, Resolved: count("update_success")+count("update_failure") > 0,
			Handshakes: count("ssl.handshake"), UntrustedCertificates: count("ssl.fail_verify_error"),
			NameMismatches: count("ssl.fail_verify_san"), OtherTLSFailures: count("ssl.connection_error"),
		}
	}
	return all
}

// ProblemReport has all problems of the mesh configuration, and the failing endpoints among them.
type ProblemReport struct {
	Problems         []discovery.Problem
	FailingEndpoints []endpoints.Problem
}

// ProblemReport returns the problems of the mesh configuration. Those that only the statistics of a
// running Envoy show are current if fresh is set; otherwise they are at most countPeriod old.
func (o *MeshOperations) ProblemReport(ctx context.Context, fresh bool) ProblemReport {
	failing := o.Endpoints.Problems()
	found := slices.Concat(o.Discovery.Problems(), o.exposed(), o.Unbound.Problems(),
		backendProblems(failing))
	found = append(found, certificateProblems(o.Identity.Secrets(), found)...)
	found = append(found, o.counts(ctx, fresh)...)
	slices.SortFunc(found, discovery.Problem.Compare)
	return ProblemReport{found, failing}
}

func (o *MeshOperations) counts(ctx context.Context, now bool) []discovery.Problem {
	node := o.Ports.LastAcceptingNode()
	if node == nil {
		return nil
	}
	o.live.mu.Lock()
	defer o.live.mu.Unlock()
	if now || time.Since(o.live.counted) > countPeriod {
		o.live.counted = time.Now()
		o.live.found = nil
		if found, err := o.Discovery.ProblemsInStatistics(node, o.counted(ctx)); err == nil {
			o.live.found = found
		}
	}
	return o.live.found
}

// backendProblems returns a problem for each endpoint that fails.
func backendProblems(failing []endpoints.Problem) []discovery.Problem {
	var problems []discovery.Problem
	for _, p := range failing {
		problems = append(problems, discovery.Problem{Severity: condition.Warning,
			Message: p.String(), Fix: "start it, or correct its address"})
	}
	return problems
}

// exposed returns a problem for each port that other hosts can reach without mutual TLS although
// the mesh requires it.
func (o *MeshOperations) exposed() []discovery.Problem {
	var problems []discovery.Problem
	for _, e := range o.Exposure.Report().Exposed {
		p := object.ProblemAt(e.Policy, condition.Error, e.String(), e.Fix)
		if e.Policy.Kind == "" { // an upstream server requires mutual TLS; no file to name
			p.File, p.Line, p.Object = "", 0, ""
		}
		problems = append(problems, p)
	}
	return problems
}
