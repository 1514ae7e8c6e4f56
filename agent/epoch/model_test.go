package epoch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var seeds = flag.Int("seeds", 40, "how many random lives are lived")

// TestRandomLives simulates a host with failures at random moments and checks invariants: there is
// no fault (a third generation of Envoys, a parent signalled too early, a number used twice),
// outages last no longer than a start takes, every request completes, and a final reload succeeds.
func TestRandomLives(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onHost(t, func(h *harness) { randomLife(h, rand.New(rand.NewPCG(uint64(seed), 1))) })
			if t.Failed() {
				t.Logf("reproduce with -run 'TestRandomLives/%d$' -v", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

func randomLife(h *harness, random *rand.Rand) {
	h.config.RestartBackoffMin, h.config.RestartBackoffMax = 10*time.Millisecond, 20*time.Millisecond
	h.config.RestartLimit, h.config.RestartWindow = 0, 0
	h.s.Configure(h.config)
	for name, b := range map[string]behaviour{
		"invalid": {invalid: true}, "unparsed": {unparsed: true}, "late": {late: true}, "never": {never: true},
		"slow": {slow: 200 * time.Millisecond},
	} {
		h.w.behaviour[name] = b
	}
	broken := []string{"invalid", "unparsed", "late", "never"}
	h.must(specOf("first"))
	latest := specOf("first") // the last accepted spec, which a restarted agent applies
	var callers sync.WaitGroup
	asking, cancel := context.WithCancel(h.t.Context())
	defer callers.Wait()
	defer cancel()
	ask := func(request Request) {
		s := h.s
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(asking, 2*time.Minute)
			defer cancel()
			_, err := s.Apply(ctx, request)
			if errors.Is(err, context.DeadlineExceeded) {
				h.t.Errorf("apply %q: no answer", request.Spec.Digest)
			}
		})
	}
	for step := range 30 {
		h.t.Logf("%s step %d", time.Now().Format("15:04:05.000"), step)
		before, alive := h.outage(), h.alive()
		h.do(func() { // new epochs have clients or none, and some clients disconnect
			h.w.clients = random.Uint64N(2)
			for _, e := range alive {
				e.idle = min(e.idle, random.Uint64N(2))
			}
		})
		// maximum outage: a parent's grace period, a start, and up to two retries
		limit := time.Second
		switch random.IntN(12) {
		case 0, 1, 2, 3:
			latest = specOf(fmt.Sprintf("good %d", step))
			if random.IntN(4) == 0 {
				latest.HotRestartVersion = "12.1"
			}
			if random.IntN(4) == 0 {
				latest = specOf("slow")
			}
			ask(Request{Spec: latest, Reason: latest.Digest, IfChanged: random.IntN(2) == 0})
		case 4, 5:
			hash := broken[random.IntN(len(broken))]
			ask(Request{Spec: specOf(hash), Reason: hash})
		case 6, 7, 8:
			if len(alive) > 0 {
				h.kill(alive[random.IntN(len(alive))], "SIGKILL")
			}
		case 9:
			for _, e := range alive {
				h.kill(e, "SIGKILL")
			}
		case 10:
			h.leave()
			away := time.Duration(random.IntN(1000)) * time.Millisecond
			if len(alive) > 0 && random.IntN(2) == 0 {
				h.kill(alive[random.IntN(len(alive))], "SIGKILL")
			}
			h.wait(away)
			limit += away
			h.begin()
			ask(Request{Spec: latest, Reason: latest.Digest, IfChanged: true})
		case 11:
			h.w.lose()
			h.wait(50 * time.Millisecond)
			if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
				h.t.Fatal(err)
			}
		}
		switch random.IntN(3) {
		case 0:
			h.wait(time.Duration(random.IntN(100)) * time.Millisecond)
		case 1:
			h.wait(time.Duration(random.IntN(1500)) * time.Millisecond)
		case 2:
			h.wait(time.Duration(random.IntN(15000)) * time.Millisecond)
		}
		if down := h.outage() - before; down > limit {
			h.t.Errorf("step %d: nobody served for %s", step, down)
			return
		}
	}
	callers.Wait()
	h.wait(repairInterval + 30*time.Second)
	h.adminIsBack()
	last := specOf("last")
	h.must(last)
	h.wait(20 * time.Second)
	synctest.Wait()
	if alive := h.alive(); len(alive) != 1 || alive[0].hash != "last" {
		h.t.Errorf("%d Envoys at the end", len(alive))
	}
}
