package endpoints

import (
	"strings"
	"testing"
	"time"
)

// TestTracker_Providers: the service of a trace collector or access log becomes a problem, with the
// cause, when it fails, and the problem ends when it works again. The counters are those of a real
// Envoy.
func TestTracker_Providers(t *testing.T) {
	stream := Counters{Requests: 1, Connects: 1, ActiveConnections: 1}
	for name, test := range map[string]struct {
		before, fails, more, works Counters
		cause                      string
	}{
		"gone": {Counters{}, Counters{Connects: 8, ConnectFails: 8, Errors: 8},
			Counters{Connects: 9, ConnectFails: 9, Errors: 9},
			Counters{Requests: 1, Success: 1, Connects: 10, ConnectFails: 9, Errors: 9}, "cannot connect"},
		"silent": {Counters{}, Counters{Requests: 60, Errors: 60, Timeouts: 60},
			Counters{Requests: 90, Errors: 90, Timeouts: 90},
			Counters{Requests: 91, Success: 1, Errors: 90, Timeouts: 90}, "no answer in time"},
		"errors": {Counters{}, Counters{Requests: 60, Errors: 60}, Counters{Requests: 90, Errors: 90},
			Counters{Requests: 91, Success: 1, Errors: 90}, "it answers with errors"},
		"200 without end": {Counters{}, Counters{Requests: 60, Success: 60, Timeouts: 60},
			Counters{Requests: 90, Success: 90, Timeouts: 90},
			Counters{Requests: 91, Success: 91, Timeouts: 90}, "no answer in time"},
		"a stream ends, and its service is gone": {stream,
			Counters{Requests: 1, Connects: 2, ConnectFails: 1, Errors: 1},
			Counters{Requests: 1, Connects: 3, ConnectFails: 2, Errors: 2},
			Counters{Requests: 2, Connects: 4, ConnectFails: 2, Errors: 2}, "cannot connect"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, false, func(b *bench) {
				b.set(0, map[Key]Counters{web: test.before})
				b.provide()
				b.after(10 * time.Second)
				for _, c := range []Counters{test.fails, test.more} {
					b.set(0, map[Key]Counters{web: c})
					b.after(blindPeriod + 5*time.Second)
				}
				want := "backend web.test at 10.0.0.1:80, of provider otel (/mesh.yaml:3), fails: " + test.cause
				if !strings.HasPrefix(b.sentence(), want) {
					t.Fatalf("%q, want %q", b.sentence(), want)
				}
				b.set(0, map[Key]Counters{web: test.works})
				if b.after(blindPeriod + 2*openPeriod); b.sentence() != "" {
					t.Errorf("it works: %s", b.sentence())
				}
			})
		})
	}
}

// TestTracker_ProviderIsOnlyCountedOnce: a failed request of a client to a provider's service,
// which is in the log of failures and in the counters, is counted once.
func TestTracker_ProviderIsOnlyCountedOnce(t *testing.T) {
	run(t, false, func(b *bench) {
		b.provide()
		b.after(10 * time.Second)
		b.RecordFailure(refused)
		b.set(0, map[Key]Counters{web: {ConnectFails: 1, Errors: 1}})
		b.after(2 * blindPeriod)
		if n := b.FailureCount(); n != 1 || !strings.Contains(b.sentence(),
			"fails: connection refused (") {
			t.Errorf("%d failures, %q", n, b.sentence())
		}
	})
}

func TestTracker_DroppedEntries(t *testing.T) {
	const otel = "access_logs.open_telemetry_access_log.logs_dropped"
	run(t, false, func(b *bench) {
		b.drop(0, otel, 5)
		if b.after(2 * blindPeriod); b.sentence() != "" {
			t.Fatalf("without a provider: %s", b.sentence())
		}
		b.provide()
		if b.after(2 * blindPeriod); b.sentence() != "" {
			t.Fatalf("none is dropped any more: %s", b.sentence())
		}
		b.drop(0, otel, 6)
		if b.after(blindPeriod); !strings.Contains(b.sentence(), "drops log entries for OpenTelemetry: ") {
			t.Fatalf("sentence: %q", b.sentence())
		}
		if b.after(blindPeriod); b.sentence() != "" {
			t.Fatalf("none is dropped any more: %s", b.sentence())
		}
		b.drop(1, otel, 3)
		if b.after(blindPeriod); b.sentence() != "" {
			t.Fatalf("a new epoch's first counters: %s", b.sentence())
		}
		b.drop(1, "tracing.zipkin.reports_failed", 1)
		if b.after(blindPeriod); !strings.Contains(b.sentence(), "drops spans for zipkin: ") {
			t.Fatalf("sentence: %q", b.sentence())
		}
	})
}

// TestTracker_FloodOfFailuresIsNoDrop: the condition for dropped log entries is not raised while
// the agent receives more failures than it reads. Envoy drops the rest of them, and counts them
// together with drops of the providers' gRPC access logs.
func TestTracker_FloodOfFailuresIsNoDrop(t *testing.T) {
	run(t, false, func(b *bench) {
		b.provide()
		b.after(blindPeriod)
		b.drop(0, sharedDrops, 7)
		flood := refused
		flood.Count = 10000
		b.RecordFailure(flood)
		b.after(blindPeriod + 5*time.Second)
		for _, c := range b.board.Conditions() {
			if c.Code == ConditionDropped {
				t.Fatal(c.Sentence)
			}
		}
		b.drop(0, sharedDrops, 8)
		b.after(blindPeriod + 5*time.Second)
		for _, c := range b.board.Conditions() {
			if c.Code == ConditionDropped {
				return
			}
		}
		t.Error("no condition without a flood")
	})
}
