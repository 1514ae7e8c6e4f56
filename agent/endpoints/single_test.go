package endpoints

import (
	"strings"
	"testing"
	"time"
)

// step sets counters and may report a failure, at a time after the previous step.
type step struct {
	after time.Duration
	epoch int
	now   Counters
	fails bool
}

// TestTracker_SingleFailureAndProblem: one failure of a working endpoint is not a problem, no
// matter when its next success is counted. A second failure without a success between the two makes
// a problem, no matter how much later.
func TestTracker_SingleFailureAndProblem(t *testing.T) {
	works, dead := Counters{Requests: 9, Success: 9}, Counters{Connects: 1, ConnectFails: 1}
	const ms, s = time.Millisecond, time.Second
	http := func(requests, success uint64) Counters {
		return Counters{Requests: requests, Success: success}
	}
	tcp := func(connects, fails, open uint64) Counters {
		return Counters{Connects: connects, ConnectFails: fails, ActiveConnections: open}
	}
	for name, test := range map[string]struct {
		steps   []step
		problem bool // there is a problem five seconds after the last step
	}{
		"the success is in the first counters": {[]step{{0, 0, works, true}}, false},
		"the success comes soon":               {[]step{{0, 0, dead, true}, {s, 0, works, false}}, false},
		"the success is of the epoch before": {
			[]step{{0, 0, works, true}, {s, 1, Counters{}, false}}, false},
		"each failure has its success": {[]step{{0, 0, http(2, 1), true}, {60 * s, 0, http(4, 2), true},
			{60 * s, 0, http(6, 3), true}, {60 * s, 0, http(8, 4), true}}, false},
		"it never worked": {[]step{{0, 0, dead, true}}, true},
		"it works no more": {
			[]step{{0, 0, http(2, 1), true}, {time.Hour, 0, http(3, 1), true}}, true},
		"it works no more, after successes": {[]step{{0, 0, http(2, 1), true},
			{time.Hour, 0, http(9, 7), true}, {time.Hour, 0, http(10, 7), true}}, true},
		"failures at once":  {[]step{{0, 0, works, true}, {500 * ms, 0, works, true}}, false},
		"TCP: it has ended": {[]step{{0, 0, tcp(2, 1, 0), true}}, false},
		"TCP: each failure has its success": {
			[]step{{0, 0, tcp(2, 1, 0), true}, {60 * s, 0, tcp(4, 2, 0), true}}, false},
		"TCP: open connections": {[]step{{0, 0, tcp(101, 1, 100), true}}, false},
		"TCP: connections that stay open": {
			[]step{{0, 0, dead, true}, {5 * s, 0, tcp(101, 1, 100), false}, {90 * s, 0,
				tcp(101, 1, 100), false}}, false},
		"TCP: a connection that is being established": {
			[]step{{0, 0, dead, true}, {5 * s, 0, tcp(2, 1, 1), false}, {20 * s, 0,
				tcp(3, 2, 1), false}, {55 * s, 0, tcp(4, 3, 1), false}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, false, func(b *bench) {
				for _, step := range test.steps {
					b.after(step.after)
					b.set(step.epoch, map[Key]Counters{web: step.now})
					if step.fails {
						b.RecordFailure(refused)
					}
				}
				if b.after(5 * s); (b.sentence() != "") != test.problem {
					t.Errorf("%q, want a problem: %t", b.sentence(), test.problem)
				}
			})
		})
	}
}

// TestTracker_SingleFailuresAreCheap: a single failure causes no further read of counters, and is
// dropped if its place in the bounded list is needed for a problem.
func TestTracker_SingleFailuresAreCheap(t *testing.T) {
	run(t, false, func(b *bench) {
		hosts := map[Key]Counters{web: {}}
		for i := range byte(maxFailing) {
			key := Key{web.Cluster, "10.0.1." + string('a'+rune(i))}
			hosts[key] = Counters{Requests: 2, Success: 1}
		}
		b.set(0, hosts)
		for key := range hosts {
			if key != web {
				b.RecordFailure(EndpointFailure{key, "no answer", 1})
			}
		}
		b.after(10 * time.Second)
		reads := b.reads
		if b.after(time.Hour); b.reads != reads {
			t.Error("single failures make the agent read the counters")
		}
		b.RecordFailure(refused)
		if b.after(5 * time.Second); !strings.Contains(b.sentence(), "10.0.0.1:80") {
			t.Errorf("no room for a problem: %q", b.sentence())
		}
	})
}

// chosen is the output of Envoy 1.40 for a cluster of type ORIGINAL_DST.
const chosen = `{"cluster_statuses": [{"name": "outbound|80||none.test", "host_statuses": [{
	"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}},
	"stats": [{"name": "cx_total", "value": "1"}, {"name": "cx_connect_fail", "value": "1"}],
	"hostname": "outbound|80||none.test10.0.0.1:80"}]}]}`

// TestTracker_IgnoresWhatClientsChoose: failing endpoints whose addresses clients choose do not
// become problems.
func TestTracker_IgnoresWhatClientsChoose(t *testing.T) {
	seen, err := ParseClusters([]byte(chosen), 0)
	if err != nil {
		t.Fatal(err)
	}
	run(t, false, func(b *bench) {
		b.seen = seen
		address := func() {
			b.RecordFailure(EndpointFailure{Key{"outbound|80||none.test", "10.0.0.1:80"},
				"", 1})
		}
		address()
		b.after(5 * time.Second)
		for range 5 {
			address()
			b.after(5 * time.Second)
		}
		if len(b.Problems()) > 0 || strings.Count(b.log.String(), "backend fails") != 1 {
			t.Errorf("%+v, log: %s", b.Problems(), b.log.String())
		}
		b.set(0, map[Key]Counters{{"outbound|80||none.test", "10.0.0.1:80"}: {}})
		b.after(blindPeriod)
		address()
		if b.after(5 * time.Second); b.sentence() == "" {
			t.Error("a cluster that has endpoints now is still ignored")
		}
	})
}
