// Package endpoints tracks the endpoints of the mesh's clusters that refuse connections or do not
// answer.
//
//	Envoy's access log of failures → FailureService ─┐
//	                                                 Tracker → journal, condition, status, metrics
//	Envoy's counters (/clusters) ────────────────────┘
//
// With the embedded discovery server each failed request is reported at once, with its cause. With
// an upstream server, whose listeners have no such log, the counters show failures. In both cases
// the counters show the first success, which ends a problem. Everything is bounded: the rate at
// which failures are read, the endpoints that are stored, and the lines in the journal.
package endpoints

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/repeat"
)

// ConditionFailing is active while endpoints fail.
const ConditionFailing = "backend-failing"

// Times and limits of a Tracker.
const (
	// confirmAfter is how long an endpoint must have no success after its first failure to be a
	// problem. In addition it must fail again, or never have had a success in this epoch.
	confirmAfter = 2 * time.Second
	// connectedAfter is the time after which an open connection counts as established. No attempt
	// to connect takes that long.
	connectedAfter = time.Minute
	// openPeriod is the interval of reading the counters while there is a problem, to notice its
	// end.
	openPeriod = 10 * time.Second
	// blindPeriod is the interval of reading the counters while no failures are reported.
	blindPeriod = time.Minute
	// forgetAfter is the time after the last failure of an endpoint at which its problem ends
	// without a success. In that time Envoy has sent nothing to the endpoint, or has received only
	// HTTP errors.
	forgetAfter = 5 * time.Minute
	// costFactor bounds how much time Envoy spends on writing the counters of a large mesh: reading
	// them takes at most 1/costFactor of the time.
	costFactor = 50
	// maximum number of failing endpoints that are stored; failures of others are only counted
	maxFailing = 100
)

// logLimits are the maximum numbers of journal lines in a minute: PerClass for one endpoint and
// cause, PerSubject for everything.
var logLimits = repeat.Limits{PerClass: 1, PerSubject: 10}

// Key identifies an endpoint. Address is "" if a cluster had no healthy endpoint.
type Key struct{ Cluster, Address string }

// Host returns the host of the mesh configuration that the cluster is for, or the cluster's name.
func (k Key) Host() string {
	if parts := strings.Split(k.Cluster, "|"); len(parts) == 4 {
		return cmp.Or(parts[3], "the application on port "+parts[1])
	}
	return k.Cluster
}

// EndpointFailure is one or more failed requests or connections of an endpoint.
type EndpointFailure struct {
	Key   // empty: no endpoint was healthy in a cluster that Envoy does not name
	Cause string
	Count uint64 // number of requests or connections
}

// Problem is an endpoint that failed and had no success since.
type Problem struct {
	Key
	Cause       string // cause of the last failure
	Since       time.Time
	LastFailure time.Time
	Requests    uint64 // failed requests and connections
	Provider    string // providers of MeshConfig that use the service, for display; "": none
}

// Counters are Envoy's counters of an endpoint.
type Counters struct {
	Requests, Success, Errors, Timeouts       uint64 // rq_total, rq_success, rq_error, rq_timeout
	Connects, ConnectFails, ActiveConnections uint64 // cx_total, cx_connect_fail, cx_active
}

// succeeded reports whether there was a success since earlier counters: with HTTP a response other
// than 5xx, with other protocols an established connection that was closed. Envoy counts a
// connection that is about to fail as active. If connections have failed since the earlier
// counters, a connection that was opened after them must have closed.
func (c Counters) succeeded(since Counters) bool {
	return c.Success > since.Success || c.Requests == 0 && (c.closed() > since.begun() ||
		c.ConnectFails == since.ConnectFails && c.closed() > since.closed())
}

// worked reports whether there was any success: with HTTP a response other than 5xx, with other
// protocols a connection that did not fail.
func (c Counters) worked() bool { return c.Success > 0 || c.Requests == 0 && c.begun() > 0 }

// failures returns the number of failed connections and requests. One may count twice.
func (c Counters) failures() uint64 { return c.ConnectFails + c.Timeouts + c.Errors }

// served reports whether a provider's service has worked since earlier counters: nothing failed,
// and a request succeeded or, if the last failure is at least connectedAfter ago, a request began.
// The latter covers responses that never end, such as those to streams of logs. ago is the time
// since the last failure.
func (c Counters) served(since Counters, ago time.Duration) bool {
	return c.failures() == since.failures() &&
		(c.Success > since.Success || c.Requests > since.Requests && ago >= connectedAfter)
}

// begun returns the number of connections that did not fail.
func (c Counters) begun() int64 { return int64(c.Connects) - int64(c.ConnectFails) }

// closed returns the number of connections that were established and are closed.
func (c Counters) closed() int64 { return c.begun() - int64(c.ActiveConnections) }

// Snapshot holds the counters of all endpoints of an epoch.
type Snapshot struct {
	Epoch     int
	Endpoints map[Key]Counters
	// ClustersWithClientChosenEndpoints has the clusters whose endpoints clients choose. Endpoints
	// does not contain them.
	ClustersWithClientChosenEndpoints map[string]bool
}

// Options configure a Tracker.
type Options struct {
	// ReadCounters reads the counters of the live epoch.
	ReadCounters func(ctx context.Context) (Snapshot, error)
	// RequestsWithoutEndpoint returns, by cluster, how many requests of the live epoch found no
	// healthy endpoint.
	RequestsWithoutEndpoint func(ctx context.Context) (map[string]uint64, error)
	// EnvoyHasNoFailureLog reports whether Envoy's listeners have no log of failures, so that only
	// the counters show them.
	EnvoyHasNoFailureLog func() bool
	// ProvidersByCluster returns the providers of MeshConfig, for display, by the cluster of their
	// service. Requests that Envoy itself sends to these services are not in the log of failures.
	ProvidersByCluster func() map[string]string
	// ReadDroppedTelemetry reads how many log entries and spans the live epoch has dropped, by
	// statistic.
	ReadDroppedTelemetry func(ctx context.Context) (DroppedTelemetry, error)
	Conditions           *condition.Registry
	Logger               *slog.Logger
}

// Tracker tracks failing endpoints. It is safe for concurrent use.
type Tracker struct {
	lifecycle.Readiness
	options Options
	wake    chan struct{}

	mu      sync.Mutex
	failing map[Key]*failing
	total   uint64 // all failures since the start
	limiter repeat.Limiter
	before  *Snapshot // previous counters of endpoints with failures
	// a request failed because no endpoint of its cluster was healthy, and Envoy did not name the
	// cluster
	nowhere bool
	empty   map[string]uint64
	looked  time.Time // time of the last read of the counters
	// byClient has the clusters in the last counters whose endpoints clients choose.
	byClient  map[string]bool
	providers map[string]string // result of the last call of Options.ProvidersByCluster
	drops     dropState         // owned by Run
}

// failing is an endpoint that failed: a problem, or one that may become a problem.
type failing struct {
	Problem
	confirmed bool
	latest    uint64    // requests or connections that the last reported failure counts
	base      *Snapshot // counters after the failure; nil: not read yet
	worked    bool      // base shows a success, before or after the failure
	connected time.Time // when a connection that has not failed was first seen; zero: none
}

// again reports whether the last failure came at least confirmAfter after the first failure.
func (p *failing) again() bool { return p.LastFailure.Sub(p.Since) >= confirmAfter }

// undecided reports whether the endpoint is not a problem yet and the next counters can make it
// one.
func (p *failing) undecided() bool {
	return !p.confirmed && (p.base == nil || !p.worked || p.again())
}

// restart makes the last failure count as the first one, because there was a success between them
// or after the last one.
func (p *failing) restart(seen Snapshot) {
	p.Since, p.Requests = p.LastFailure, p.latest
	p.base, p.worked = seen.only(p.Key), true
}

// New returns a Tracker.
func New(o Options) *Tracker {
	return &Tracker{options: o, wake: make(chan struct{}, 1), failing: map[Key]*failing{}}
}

// Name returns the name of the component.
func (t *Tracker) Name() string { return "endpoints" }

// RecheckProviders makes Run read the counters soon if MeshConfig now has its first providers. It
// never blocks.
func (t *Tracker) RecheckProviders() {
	if t.takeProviders() {
		t.CheckSoon()
	}
}

// takeProviders stores the current extension providers of MeshConfig. It reports whether there were
// none before.
func (t *Tracker) takeProviders() bool {
	providers := t.options.ProvidersByCluster()
	t.mu.Lock()
	defer t.mu.Unlock()
	first := len(t.providers) == 0 && len(providers) > 0
	t.providers = providers
	return first
}

// CheckSoon makes Run read the counters soon, because EnvoyHasNoFailureLog may have changed. It
// never blocks.
func (t *Tracker) CheckSoon() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// RecordFailure records a failure and logs it, within the limits.
func (t *Tracker) RecordFailure(f EndpointFailure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report(f, time.Now())
}

func (t *Tracker) report(f EndpointFailure, now time.Time) {
	if f.Cluster == "" {
		t.nowhere = true
		t.CheckSoon()
		return
	}
	if t.byClient[f.Cluster] && now.Sub(t.looked) < blindPeriod {
		return
	}
	t.total += f.Count
	p := t.failing[f.Key]
	if p == nil {
		if len(t.failing) >= maxFailing && !t.makeRoom() {
			return
		}
		p = &failing{Problem: Problem{Key: f.Key, Since: now}}
		t.failing[f.Key] = p
	}
	p.Cause, p.LastFailure, p.Requests, p.latest = f.Cause, now, p.Requests+f.Count, f.Count
	if p.undecided() {
		t.CheckSoon()
	}
	t.log(slog.LevelWarn, "backend fails", f.Key, "cause", f.Cause)
}

// makeRoom removes an endpoint that is not a problem, and reports whether there was one. Callers
// hold mu.
func (t *Tracker) makeRoom() bool {
	for key, p := range t.failing {
		if !p.confirmed && !p.undecided() {
			delete(t.failing, key)
			return true
		}
	}
	return false
}

// log logs a message about an endpoint with a further field, within the limits of its level.
func (t *Tracker) log(level slog.Level, message string, of Key, field string, value any) {
	class := fmt.Sprint(of.Cluster, " ", of.Address)
	if level == slog.LevelWarn {
		class += fmt.Sprint(" ", value) // value is the cause of a failure
	}
	omitted, ok := t.limiter.Allow(time.Now(), level.String(), class, logLimits)
	if !ok {
		return
	}
	fields := []any{"host", of.Host(), "address", of.Address, field, value, "cluster", of.Cluster}
	if provider := t.providers[of.Cluster]; provider != "" {
		fields = append(fields, "provider", provider)
	}
	if omitted > 0 {
		fields = append(fields, "omitted", omitted)
	}
	t.options.Logger.Log(context.Background(), level, message, fields...)
}

// Problems returns the endpoints with a problem, sorted by cluster and address.
func (t *Tracker) Problems() []Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.problems()
}

func (t *Tracker) problems() []Problem {
	var all []Problem
	for _, p := range t.failing {
		if p.confirmed {
			found := p.Problem
			found.Provider = t.providers[p.Cluster]
			all = append(all, found)
		}
	}
	slices.SortFunc(all, func(x, y Problem) int {
		return cmp.Or(cmp.Compare(x.Cluster, y.Cluster), cmp.Compare(x.Address, y.Address))
	})
	return all
}

// FailureCount returns the number of failures since the start of the agent.
func (t *Tracker) FailureCount() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}
