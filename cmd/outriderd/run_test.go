package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

func TestMain(m *testing.M) {
	code := m.Run()
	rig.RemovePrograms()
	os.Exit(code)
}

// current returns the live epoch.
func current(t *testing.T, r *rig.Rig) api.Epoch {
	t.Helper()
	var status api.Status
	r.RunOutriderJSON(&status, "status")
	for _, epoch := range status.Epochs {
		if epoch.State == api.EpochLive {
			return epoch
		}
	}
	t.Fatalf("no epoch is live: %+v", status)
	return api.Epoch{}
}

func TestAgent_ServesReloadsAndStops(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	daemon := r.StartReady()
	code, body, err := r.GetThroughEnvoy("/hello")
	if err != nil || code != 200 {
		t.Fatalf("GET through Envoy: %d %v %s", code, err, body)
	}
	first := current(t, r)
	if first.Number != 0 || first.Mode != "first" {
		t.Errorf("first epoch: %+v", first)
	}

	result := r.RunOutrider("reload")
	if result.ExitCode != 0 || !strings.Contains(result.Stdout, "0 → 1") {
		t.Fatalf("reload: exit %d: %s%s", result.ExitCode, result.Stdout, result.Stderr)
	}
	second := current(t, r)
	if second.Number != 1 || second.Mode != "hot-restart" || second.PID == first.PID {
		t.Errorf("second epoch: %+v", second)
	}
	if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
		t.Errorf("GET through the second epoch: %d %v", code, err)
	}

	keepers := r.ProcessIDs("outrider-keeper")
	if len(keepers) != 1 {
		t.Errorf("keepers: %v", keepers)
	}
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := daemon.Wait(t, 30*time.Second); exit != 0 {
		t.Errorf("exit %d\n%s", exit, daemon.Output())
	}
	rig.Eventually(t, time.Minute, "no process is left", func() bool {
		return len(r.ProcessIDs("envoy")) == 0 && len(r.ProcessIDs("outrider-keeper")) == 0
	})
	left, _ := filepath.Glob(filepath.Join(r.Dir, "run", "*"))
	more, _ := filepath.Glob(filepath.Join(r.Dir, "run", "*", "*"))
	for _, path := range append(left, more...) {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			t.Errorf("left behind: %s", path)
		}
	}
}

func TestReload_BrokenChangeHasNoEffect(t *testing.T) {
	r := rig.New(t, rig.Options{Race: true, TOML: "[reload]\nwatch = false\n"})
	r.StartReady()
	before := current(t, r)
	for _, broken := range []struct{ name, toml, says string }{
		{"unknown key", "[envoy]\nconcurency = 2\n", "concurrency"},
		{"not TOML", "[envoy\n", "50-test.toml:1"},
		{"bootstrap Envoy refuses", "[reload]\nwatch = false\n[envoy]\nbootstrap_override = \"" +
			badBootstrap(r) + "\"\n", "malformed IP address"},
	} {
		r.SetTOML(broken.toml)
		result := r.RunOutrider("reload")
		if result.ExitCode != 1 || !strings.Contains(result.Stderr, broken.says) ||
			!strings.Contains(result.Stderr, "epoch 0") {
			t.Errorf("%s: exit %d: %s%s", broken.name, result.ExitCode, result.Stdout, result.Stderr)
		}
		if now := current(t, r); now.PID != before.PID {
			t.Errorf("%s: another epoch serves: %+v", broken.name, now)
		}
		if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
			t.Errorf("%s: GET: %d %v", broken.name, code, err)
		}
	}
	r.SetTOML("[reload]\nwatch = false\n")
	if result := r.RunOutrider("reload"); result.ExitCode != 0 {
		t.Errorf("reload after three refused ones: exit %d: %s", result.ExitCode, result.Stderr)
	}
}

func TestReload_EpochOnlyIfNeeded(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	epochs := func() int { return current(t, r).Number }
	r.SetTOML("# a comment\n")
	r.SetTOML("[log]\nlevel = \"info\"\n")
	rig.Eventually(t, time.Minute, "the log level is applied", func() bool {
		var levels api.LogLevels
		r.RunOutriderJSON(&levels, "log-level")
		return levels.Agent == "info"
	})
	if n := epochs(); n != 0 {
		t.Errorf("a [live] key started epoch %d", n)
	}
	r.SetTOML("[envoy]\nconnect_timeout = \"2s\"\n")
	rig.Eventually(t, time.Minute, "epoch 1 is live", func() bool { return epochs() == 1 })
}

func TestAgent_AdoptsAfterKill(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	if result := r.RunOutrider("reload"); result.ExitCode != 0 {
		t.Fatalf("reload: %s", result.Stderr)
	}
	before := current(t, r)
	r.KillAgent()
	if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
		t.Fatalf("GET without an agent: %d %v", code, err)
	}
	r.StartReady()
	if now := current(t, r); now.PID != before.PID || now.Number != before.Number {
		t.Errorf("adopted %+v, not %+v", now, before)
	}
	if result := r.RunOutrider("reload"); result.ExitCode != 0 {
		t.Errorf("reload after adoption: %s", result.Stderr)
	}
	if now := current(t, r); now.Number != before.Number+1 {
		t.Errorf("epoch after adoption: %+v", now)
	}
}

// A keeper that re-executes its binary on request raises no condition, and Envoy continues to run.
func TestKeeper_ReplacedInPlace(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	daemon := r.StartReady()
	before := current(t, r)
	if err := syscall.Kill(r.ProcessIDs("outrider-keeper")[0], syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "the agent says so",
		func() bool { return strings.Contains(daemon.Output(), "the keeper re-executed itself") })
	rig.Eventually(t, time.Minute, "no condition stands",
		func() bool { return len(conditions(t, r)) == 0 })
	if output := daemon.Output(); strings.Contains(output, `"ERROR"`) ||
		strings.Contains(output, `"WARN"`) {
		t.Errorf("a planned re-execution alarms:\n%s", output)
	}
	if now := current(t, r); now.PID != before.PID {
		t.Errorf("Envoy %d became %d", before.PID, now.PID)
	}
	if result := r.RunOutrider("reload"); result.ExitCode != 0 {
		t.Errorf("reload: %s", result.Stderr)
	}
}

func TestStart_SecondAgentExits(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	first := r.StartReady()
	second := r.Start()
	if exit := second.Wait(t, 30*time.Second); exit != 73 {
		t.Errorf("exit %d: %s", exit, second.Output())
	}
	if !strings.Contains(second.Output(), strconv.Itoa(first.Process.Pid)) {
		t.Errorf("the error does not name the other: %s", second.Output())
	}
	if ready, why := r.Ready(); !ready {
		t.Errorf("the first is not ready any more: %s", why)
	}
	_ = first.Process.Signal(syscall.SIGTERM)
	first.Wait(t, 20*time.Second)
}

func TestBootstrapFiles_AwaitedAndWatched(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	certificate := filepath.Join(r.Dir, "certificate.pem")
	r.SetTOML(fmt.Sprintf("[reload]\nfiles = [%q, %q]\n[identity]\nwait = "+
		"\"30s\"\n[envoy]\ndrain_duration = \"1s\"\nparent_shutdown_duration = \"2s\"\n",
		certificate, certificate))
	r.Start()
	rig.Eventually(t, time.Minute, "the reason names the missing file", func() bool {
		ready, why := r.Ready()
		return !ready && strings.Count(why, certificate) == 1
	})
	r.WriteFile("certificate.pem", "one")
	r.WaitReady(20 * time.Second)
	r.WriteFile("certificate.pem", "one")
	r.WriteFile("certificate.pem", "two")
	rig.Eventually(t, time.Minute, "changed content starts an epoch",
		func() bool { return current(t, r).Number == 1 })
	if epoch := current(t, r); !strings.Contains(epoch.Reason, "certificate.pem") {
		t.Errorf("the reason does not name the file: %+v", epoch)
	}
}

func TestSignals_HangupReloadsSecondTerminationAborts(t *testing.T) {
	t.Parallel()
	r := rig.New(t,
		rig.Options{Race: true,
			TOML: "[envoy]\ntermination_drain_duration = \"60s\"\nmaximum_drain_duration = " +
				"\"90s\"\n"})
	daemon := r.StartReady()
	_ = daemon.Process.Signal(syscall.SIGHUP)
	rig.Eventually(t, time.Minute, "SIGHUP starts an epoch",
		func() bool { return current(t, r).Number == 1 })
	_ = daemon.Process.Signal(syscall.SIGUSR1)
	rig.Eventually(t, time.Minute, "SIGUSR1 reopens the access logs",
		func() bool { return strings.Contains(daemon.Output(), "access logs reopened") })
	_ = daemon.Process.Signal(syscall.SIGTERM)
	rig.Eventually(t, time.Minute, "the proxy is not ready while it drains",
		func() bool { ready, _ := r.Ready(); return !ready })
	if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
		t.Errorf("a new connection during the drain: %d %v", code, err)
	}
	begun := time.Now()
	_ = daemon.Process.Signal(syscall.SIGTERM)
	if exit := daemon.Wait(t, 20*time.Second); exit != 0 || time.Since(begun) > 15*time.Second {
		t.Errorf("exit %d after %v", exit, time.Since(begun))
	}
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	for _, c := range []struct {
		argument string
		exit     int
		says     string
	}{
		{"envoy=nope", 1,
			"outrider: envoy has no log level \"nope\"\n" +
				"allowed are trace, debug, info, warning, error, critical, off\n"},
		{"envoy:http=nope", 1, "outrider: envoy:http has no log level \"nope\"\nallowed are trace"},
		{"envoy:nope=debug", 1, "outrider: Envoy has no logger \"nope\"\nit has "},
		{"agent=nope", 1,
			"outrider: agent has no log level \"nope\"\nallowed are debug, info, warn, error\n"},
		{"envoy:http=debug", 0, ""},
		{"envoy=error", 0, ""},
	} {
		result := r.RunOutrider("log-level", c.argument)
		if result.ExitCode != c.exit || !strings.HasPrefix(result.Stderr, c.says) {
			t.Errorf("%s: exit %d: %s%s", c.argument, result.ExitCode, result.Stdout, result.Stderr)
		}
	}
}

// conditions returns the sentences of all active conditions.
func conditions(t *testing.T, r *rig.Rig) []string {
	t.Helper()
	var status api.Status
	r.RunOutriderJSON(&status, "status")
	var all []string
	for _, condition := range status.Conditions {
		all = append(all, condition.Sentence)
	}
	return all
}
