package endpoints

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/condition"
)

// bench runs a Tracker over counters that a test sets.
type bench struct {
	*Tracker
	board *condition.Registry
	log   bytes.Buffer

	mu        sync.Mutex
	seen      Snapshot
	reads     int
	providers map[string]string
	dropped   DroppedTelemetry
}

// provide makes the cluster of the endpoint web the service of an extension provider.
func (b *bench) provide() {
	b.mu.Lock()
	b.providers = map[string]string{web.Cluster: "provider otel (/mesh.yaml:3)"}
	b.mu.Unlock()
	b.RecheckProviders()
}

// drop replaces the number of log entries that Envoy has dropped.
func (b *bench) drop(epoch int, statistic string, count uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropped = DroppedTelemetry{epoch, map[string]uint64{statistic: count}}
}

// set replaces the counters that the Tracker reads.
func (b *bench) set(epoch int, hosts map[Key]Counters) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = Snapshot{Epoch: epoch, Endpoints: hosts}
}

func run(t *testing.T, blind bool, test func(*bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{board: condition.NewRegistry(),
			seen: Snapshot{Endpoints: map[Key]Counters{web: {Requests: 1}}}}
		b.Tracker = New(Options{Conditions: b.board, EnvoyHasNoFailureLog: func() bool { return blind },
			RequestsWithoutEndpoint: func(context.Context) (map[string]uint64, error) {
				return nil,
					nil
			},
			Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
			ProvidersByCluster: func() map[string]string {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.providers
			},
			ReadDroppedTelemetry: func(context.Context) (DroppedTelemetry, error) {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.dropped, nil
			},
			ReadCounters: func(context.Context) (Snapshot, error) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.reads++
				return b.seen, nil
			}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = b.Run(ctx) }()
		b.after(5 * time.Second)
		test(b)
		cancel()
		<-ended
	})
}

func (b *bench) after(d time.Duration) {
	time.Sleep(d) //house:sleep of the bubble's clock
	synctest.Wait()
}

func (b *bench) sentence() string {
	for _, c := range b.board.Conditions() {
		return c.Sentence
	}
	return ""
}

var (
	web     = Key{"outbound|80||web.test", "10.0.0.1:80"}
	refused = EndpointFailure{web, "connection refused", 1}
)

func TestTracker_ProblemUntilTheFirstSuccess(t *testing.T) {
	run(t, false, func(b *bench) {
		b.RecordFailure(refused)
		b.RecordFailure(refused)
		b.after(5 * time.Second)
		const want = "backend web.test at 10.0.0.1:80 fails: connection refused (since "
		first := b.sentence()
		if !strings.HasPrefix(first, want) || b.Problems()[0].Requests != 2 {
			t.Errorf("%q, want %q; %+v", first, want, b.Problems())
		}
		b.RecordFailure(refused)
		if b.after(time.Minute); b.sentence() != first {
			t.Errorf("%q changed to %q", first, b.sentence())
		}
		b.after(time.Minute)
		if b.sentence() == "" {
			t.Error("no problem any more, without a success")
		}
		b.set(0, map[Key]Counters{web: {Requests: 2, Success: 1}})
		b.after(11 * time.Second)
		if b.sentence() != "" {
			t.Errorf("after a success: %s", b.sentence())
		}
		if strings.Count(b.log.String(), "\n") != 2 {
			t.Errorf("log: %s", b.log.String())
		}
		reads := b.reads
		if b.after(time.Hour); b.reads != reads {
			t.Error("an agent whose backends work reads the counters")
		}
	})
}

func TestTracker_EndsWithoutSuccess(t *testing.T) {
	for name, end := range map[string]func(b *bench){
		"five minutes without a failure": func(b *bench) { b.after(forgetAfter) },
		"no longer configured": func(b *bench) {
			b.set(0, nil)
			b.after(11 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, false, func(b *bench) {
				b.RecordFailure(refused)
				if b.after(5 * time.Second); b.sentence() == "" {
					t.Fatal("no condition")
				}
				if end(b); b.sentence() != "" {
					t.Error(b.sentence())
				}
			})
		})
	}
}

// TestTracker_LinesOfEndedProblemsAreLimited: endpoints that fail and recover repeatedly cannot
// flood the journal.
func TestTracker_LinesOfEndedProblemsAreLimited(t *testing.T) {
	run(t, false, func(b *bench) {
		for round := range 10 {
			hosts := map[Key]Counters{}
			for i := range 50 {
				key := Key{web.Cluster, fmt.Sprintf("10.0.0.%d:80", i)}
				hosts[key] = Counters{Requests: 1, Success: uint64(round)}
				b.RecordFailure(EndpointFailure{key, "connection refused", 1})
			}
			b.set(0, hosts)
			b.after(3 * time.Second)
			for key := range hosts {
				b.RecordFailure(EndpointFailure{key, "connection refused", 1})
			}
			b.after(5 * time.Second)
			for key := range hosts {
				hosts[key] = Counters{Requests: 2, Success: uint64(round + 1)}
			}
			b.set(0, hosts)
			b.after(11 * time.Second)
		}
		n := strings.Count(b.log.String(), "backend answers again")
		if n < 1 || n > 30 || !strings.Contains(b.log.String(), "omitted=") {
			t.Errorf("%d lines in %d s", n, 190)
		}
	})
}

// TestTracker_FewFailuresAreNoProblem: an endpoint that fails a small part of its requests is
// logged, but is not listed as a problem.
func TestTracker_FewFailuresAreNoProblem(t *testing.T) {
	run(t, false, func(b *bench) {
		for i := range 600 {
			b.set(0, map[Key]Counters{web: {Requests: uint64(100 * i), Success: uint64(99 * i)}})
			b.RecordFailure(refused)
			if b.after(time.Second); b.sentence() != "" {
				t.Fatalf("after %d s: %s", i, b.sentence())
			}
		}
		if n := strings.Count(b.log.String(), "backend fails"); n < 9 || n > 11 {
			t.Errorf("%d lines in ten minutes: %s", n, b.log.String())
		}
	})
}

// TestTracker_PendingConnectionIsNoSuccess: a connection attempt in progress does not end a
// problem.
func TestTracker_PendingConnectionIsNoSuccess(t *testing.T) {
	run(t, false, func(b *bench) {
		b.set(0, map[Key]Counters{web: {Connects: 1, ConnectFails: 1}})
		b.RecordFailure(refused)
		b.after(5 * time.Second)
		b.set(0, map[Key]Counters{web: {Connects: 2, ConnectFails: 1, ActiveConnections: 1}})
		if b.after(20 * time.Second); b.sentence() == "" {
			t.Error("a pending connection ended the problem")
		}
		b.set(0, map[Key]Counters{web: {Connects: 2, ConnectFails: 1}})
		if b.after(11 * time.Second); b.sentence() != "" {
			t.Error("a connection did not end the problem")
		}
	})
}

// TestTracker_FailedConnectionIsNoSuccess: Envoy counts a failed connection as active for a moment,
// which must not end a problem.
func TestTracker_FailedConnectionIsNoSuccess(t *testing.T) {
	run(t, false, func(b *bench) {
		b.set(0, map[Key]Counters{web: {Connects: 1, ConnectFails: 1, ActiveConnections: 1}})
		b.RecordFailure(refused)
		b.after(5 * time.Second)
		b.set(0, map[Key]Counters{web: {Connects: 2, ConnectFails: 2}})
		if b.after(20 * time.Second); b.sentence() == "" {
			t.Error("a failed connection ended the problem")
		}
	})
}

func TestTracker_FloodIsBounded(t *testing.T) {
	run(t, false, func(b *bench) {
		hosts := map[Key]Counters{}
		var all []EndpointFailure
		for i := range 3000 {
			f := EndpointFailure{Key{fmt.Sprintf("outbound|80||h%d.test", i), "10.0.0.1:80"}, "no answer", 1}
			hosts[f.Key] = Counters{}
			all = append(all, f)
		}
		b.set(0, hosts)
		for _, f := range all {
			b.RecordFailure(f)
		}
		b.after(5 * time.Second)
		if n := len(b.Problems()); n != maxFailing {
			t.Errorf("%d problems", n)
		}
		if n := b.FailureCount(); n != 3000 {
			t.Errorf("%d failures counted", n)
		}
		if n := strings.Count(b.log.String(), "\n"); n != logLimits.PerSubject {
			t.Errorf("%d lines", n)
		}
		if !strings.HasSuffix(b.sentence(), "; and 95 more: outrider proxy endpoints") ||
			len(b.sentence()) > 1000 {
			t.Errorf("sentence: %s", b.sentence())
		}
	})
}

// TestTracker_CountersShowFailures: with an upstream server, only the counters show failures.
// Failures before the first check are ignored.
func TestTracker_CountersShowFailures(t *testing.T) {
	run(t, true, func(b *bench) {
		b.set(0, map[Key]Counters{web: {ConnectFails: 7}})
		b.after(2 * blindPeriod)
		if b.sentence() == "" {
			t.Fatal("no condition: the first failures of a new endpoint are new")
		}
		if b.after(2 * forgetAfter); b.sentence() != "" {
			t.Fatal(b.sentence())
		}
		b.set(0, map[Key]Counters{web: {ConnectFails: 7, Timeouts: 2, Requests: 2}})
		b.after(2 * blindPeriod)
		if !strings.Contains(b.sentence(), "no answer in time (") {
			t.Errorf("sentence: %q", b.sentence())
		}
		b.set(1, map[Key]Counters{web: {}})
		b.after(blindPeriod)
		b.set(1, map[Key]Counters{web: {Requests: 1, Success: 1}})
		if b.after(blindPeriod); b.sentence() != "" {
			t.Errorf("after a success in another epoch: %s", b.sentence())
		}
	})
}
