package relay

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/parts"
)

// modes runs a test once with incremental xDS and once with state-of-the-world xDS.
func modes(t *testing.T, test func(t *testing.T, delta bool)) {
	t.Helper()
	for _, delta := range []bool{true, false} {
		t.Run(map[bool]string{true: "delta", false: "world"}[delta],
			func(t *testing.T) { test(t, delta) })
	}
}

func TestIstiod_LossDoesNotDisturbEnvoy(t *testing.T) {
	modes(t, func(t *testing.T, delta bool) {
		i, port := startIstiod(t), parts.FreePort(t)
		first, second := startBackend(t, "first"), startBackend(t, "second")
		i.service("a", port, first)
		i.service("b", port, first)
		r := startRelay(t, serverAt(i.address), "")
		e := startEnvoy(t, r.socket, delta)
		answers(t, 20*time.Second, port, "a.test", "first answers")
		if s := r.Status(); s.State != Connected {
			t.Errorf("%+v", s)
		}
		run, err := load.Start(context.Background(), load.Config{
			HTTPAddress: "127.0.0.1:" + strconv.Itoa(port), Host: "a.test", Rate: 0.2})
		if err != nil {
			t.Fatal(err)
		}
		i.kill()
		parts.Eventually(t, time.Minute, "the loss is reported", func() bool {
			return strings.Contains(r.condition(conditionAway), i.address) &&
				r.Status().State == Connecting
		})
		// while istiod is stopped, service a gets another endpoint, b is removed and c is added
		i.service("a", port, second)
		i.remove("b")
		i.service("c", port, second)
		if got := ask(port, "b.test"); !strings.Contains(got, "first answers") {
			t.Errorf("while istiod is away: %s", got)
		}
		i.start()
		returned := time.Now()
		answers(t, 10*time.Second, port, "c.test", "second answers")
		answers(t, 10*time.Second, port, "a.test", "second answers")
		parts.Eventually(t, time.Minute, "b has gone", func() bool {
			return !strings.Contains(ask(port, "b.test"), "first answers") &&
				!strings.Contains(e.Get("/clusters"), "b.test")
		})
		t.Logf("caught up %v after istiod listened", time.Since(returned).Round(time.Millisecond))
		if report := run.Stop(); report.Lost > 0 {
			t.Errorf("%+v", report)
		}
		if s := r.Status(); s.State != Connected || r.condition(conditionAway) != "" {
			t.Errorf("%+v, condition %q", s, r.condition(conditionAway))
		}
		if got := e.Stat("cluster.xds-grpc.upstream_cx_total"); got != 1 {
			t.Errorf("Envoy has made %d connections", got)
		}
		// After istiod is reachable again, further changes reach Envoy.
		i.service("a", port, first)
		answers(t, 10*time.Second, port, "a.test", "first answers")
	})
}

func TestIstiod_EnvoyStartsFromTheCache(t *testing.T) {
	modes(t, func(t *testing.T, delta bool) {
		i, port := startIstiod(t), parts.FreePort(t)
		first, second := startBackend(t, "first"), startBackend(t, "second")
		i.service("a", port, first)
		i.service("b", port, first)
		cache := filepath.Join(t.TempDir(), "cache")
		r := startRelay(t, serverAt(i.address), cache)
		e := startEnvoy(t, r.socket, delta)
		answers(t, 20*time.Second, port, "a.test", "first answers")
		// The relay stores the routes after Envoy has accepted them, which may be after the first
		// response.
		parts.Eventually(t, time.Minute, "the routes are stored", func() bool {
			content, _ := os.ReadFile(cache)
			return bytes.Contains(content, []byte("envoy.config.route.v3.RouteConfiguration"))
		})
		e.Kill()
		i.kill()
		r.stop()

		r = startRelay(t, serverAt(i.address), cache)
		started := time.Now()
		e = startEnvoy(t, r.socket, delta)
		answers(t, 10*time.Second, port, "a.test", "first answers")
		t.Logf("served from the cache %v after exec",
			time.Since(started).Round(time.Millisecond))
		if s := r.Status(); s.State != Cached || s.CacheAcceptedAt.IsZero() ||
			!strings.Contains(r.condition(conditionAway), "accepted at") {
			t.Errorf("%+v, condition %q", s, r.condition(conditionAway))
		}
		run, err := load.Start(context.Background(), load.Config{
			HTTPAddress: "127.0.0.1:" + strconv.Itoa(port), Host: "a.test", Rate: 0.2})
		if err != nil {
			t.Fatal(err)
		}
		i.service("a", port, second)
		i.remove("b")
		i.start()
		answers(t, 10*time.Second, port, "a.test", "second answers")
		parts.Eventually(t, time.Minute, "b has gone", func() bool {
			return !strings.Contains(e.Get("/clusters"), "b.test")
		})
		if report := run.Stop(); report.Lost > 0 {
			t.Errorf("%+v", report)
		}
		if s := r.Status(); s.State != Connected || r.condition(conditionAway) != "" {
			t.Errorf("%+v, condition %q", s, r.condition(conditionAway))
		}
	})
}
