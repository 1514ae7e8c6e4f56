package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

func TestDrain_LeavesNoListener(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	if result := r.RunOutrider("drain", "--wait"); result.ExitCode != 0 {
		t.Fatal(result.Stderr)
	}
	if code, _, err := r.GetThroughEnvoy("/hello"); err == nil {
		t.Errorf("a connection is taken: %d", code)
	}
}

// TestUndrain_RestoresEveryListener drains and undrains a real Envoy, before and after its
// listeners are closed. When undrain returns, and also after the drain time, Envoy serves on all
// ports: the service, readiness and metrics.
func TestUndrain_RestoresEveryListener(t *testing.T) {
	t.Parallel()
	const drainTime = time.Second
	r := rig.New(t,
		rig.Options{Race: true,
			TOML: "[envoy]\ndrain_duration = \"1s\"\nparent_shutdown_duration = \"2s\"\n"})
	r.StartReady()
	serves := func() string {
		for port, path := range map[int]string{
			r.Ports.HTTP: "/hello", r.Ports.Ready: "/healthz/ready",
			r.Ports.Prometheus: "/stats/prometheus", r.Ports.Status: "/healthz/ready",
		} {
			if code, body, err := r.GetHostThroughEnvoy("web.test", port,
				path); err != nil || code != 200 {
				return fmt.Sprintf("127.0.0.1:%d%s: %d %v %s", port, path, code, err, body)
			}
		}
		return ""
	}
	rig.Eventually(t, time.Minute, "all serve", func() bool { return serves() == "" })
	for number, closed := range []bool{true, false} {
		if drained := r.RunOutrider("drain"); drained.ExitCode != 0 {
			t.Fatal(drained.Stderr)
		}
		if ready, why := r.Ready(); ready {
			t.Errorf("ready while it drains: %s", why)
		}
		if waited := r.RunOutrider("wait", "--timeout", "100ms"); waited.ExitCode == 0 {
			t.Error("wait says ready while it drains")
		}
		if closed {
			rig.Eventually(t, time.Minute, "the listeners are closed", func() bool {
				code := 0
				for _, port := range []int{r.Ports.HTTP, r.Ports.Ready, r.Ports.Prometheus} {
					answered, _, _ := r.GetHostThroughEnvoy("web.test", port, "/")
					code += answered
				}
				return code == 0
			})
		}
		undrained := r.RunOutrider("undrain")
		if want := fmt.Sprintf("epoch %d → %d (hot-restart", number,
			number+1); undrained.ExitCode != 0 || !strings.Contains(undrained.Stdout, want) {
			t.Fatalf("undrain: exit %d: %s%s; should say %q", undrained.ExitCode, undrained.Stdout,
				undrained.Stderr, want)
		}
		parts.RepeatFor(3*drainTime, 50*time.Millisecond, func() {
			if lacking := serves(); lacking != "" {
				t.Fatalf("listeners were closed %t, epoch %d: %s", closed, number+1, lacking)
			}
		})
	}
	if again := r.RunOutrider("undrain"); again.ExitCode != 0 || !strings.Contains(again.Stdout,
		"epoch 2 does not drain") {
		t.Errorf("undrain without a drain: %d %s%s", again.ExitCode, again.Stdout, again.Stderr)
	}
}
