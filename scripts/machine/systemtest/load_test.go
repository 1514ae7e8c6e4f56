package systemtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// Load is a running load on Envoy, from program load in the machine.
type Load struct {
	h       *Host
	process *exec.Cmd
	marks   io.WriteCloser
	out     bytes.Buffer
}

// StartLoad starts a load. rate is relative to the standard load (package load). more has arguments
// that override the default ones.
func (h *Host) StartLoad(rate float64, more ...string) *Load {
	h.t.Helper()
	l := &Load{h: h}
	arguments := []string{"-http", "127.0.0.1:80", "-http2", "127.0.0.1:80", "-tcp", "127.0.0.1:81",
		"-host", "web.test", "-rate", strconv.FormatFloat(rate, 'f', -1, 64)}
	l.process = h.Command(h.t.Context(), programs+"/load", append(arguments, more...)...)
	var err error
	if l.marks, err = l.process.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	l.process.Stdout, l.process.Stderr = &l.out, &l.out
	if err := l.process.Start(); err != nil {
		h.t.Fatal(err)
	}
	return l
}

// Mark adds an event to the report, at the current time.
func (l *Load) Mark(label string) {
	l.h.t.Helper()
	if _, err := io.WriteString(l.marks, label+"\n"); err != nil {
		l.h.t.Error(err)
	}
}

// Stop ends the load and returns its report.
func (l *Load) Stop() load.Report {
	l.h.t.Helper()
	if err := errors.Join(l.marks.Close(), l.process.Wait()); err != nil {
		l.h.t.Fatalf("the load: %v: %s", err, l.out.String())
	}
	lines := strings.Split(strings.TrimSpace(l.out.String()), "\n")
	var last struct{ Report load.Report }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		l.h.t.Fatal(err)
	}
	return last.Report
}

// The versions of the package before and after an upgrade, and where their folders are mounted.
const (
	oldVersion = "0.9.1"
	newVersion = "0.9.2"
	debPlace   = "/opt/debs"
)

// builtDebs caches the result of debs.
var builtDebs struct {
	sync.Mutex
	folder string
}

// debs returns a folder with both versions of the package, which are built once per test process.
func debs(t *testing.T) string {
	t.Helper()
	builtDebs.Lock()
	defer builtDebs.Unlock()
	if builtDebs.folder != "" {
		return builtDebs.folder
	}
	folder := filepath.Join(rig.Build(t, false).Dir, "debs") // TestMain removes it
	for _, version := range []string{oldVersion, newVersion} {
		command := exec.CommandContext(t.Context(), filepath.Join(parts.RepositoryRoot(), "scripts",
			"package"))
		command.Env = append(os.Environ(), "VERSION="+version, "ARCHITECTURES=amd64",
			"PACKAGERS=deb", "DEB_COMPRESSION=zstd", "DIST="+filepath.Join(folder, version),
			"WORK="+folder+".work")
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("scripts/package: %v: %s", err, out)
		}
	}
	builtDebs.folder = folder
	return folder
}

// installPackage installs a version of the package over the installed one, and keeps the
// configuration.
func (h *Host) installPackage(version string) {
	h.t.Helper()
	h.MustRun(h.t, "dpkg", "--force-confold", "-i", fmt.Sprintf("%s/%s/outrider_%s-1_amd64.deb",
		debPlace, version, version))
	if got := h.MustRun(h.t, "outriderd", "--version"); got != "outriderd "+version {
		h.t.Errorf("version %s is installed, and outriderd says %q", version, got)
	}
}

// No request is lost when the agent is reloaded, restarted, upgraded, killed or ended by the
// watchdog, or when the keeper re-executes itself.
func TestNoRequestIsLost(t *testing.T) {
	h := NewHost(t, debs(t)+":"+debPlace)
	h.installPackage(oldVersion)
	// The agent's control loop must respond within half of the watchdog's interval. On a busy
	// machine that takes up to two seconds.
	h.WriteText("/etc/systemd/system/outrider.service.d/test.conf", "[Service]\nWatchdogSec=8s\n")
	h.MustRun(t, "systemctl", "daemon-reload")
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	running := h.StartLoad(standard())
	step := func(name string, do func()) {
		running.Mark(name)
		do()
		h.Eventually(time.Minute, "after "+name+" the agent is ready", func() bool {
			out, err := h.Run(t.Context(), "outrider", "wait", "--timeout", "10s")
			return err == nil && out == "ready"
		})
	}
	systemctl := func(command string) func() {
		return func() { h.MustRun(t, "systemctl", command, "outrider.service") }
	}
	crash := func(signal string) func() {
		return func() {
			adopted(t, h, signal,
				h.LiveEpoch().PID)
		}
	}
	step("reload", systemctl("reload"))
	step("restart", systemctl("restart"))
	step("try-restart", systemctl("try-restart"))
	step("package upgrade", func() {
		agent, keeper, envoy := h.MainPID("outrider"), h.MainPID("outrider-envoy"), h.LiveEpoch().PID
		h.installPackage(newVersion)
		if h.MainPID("outrider") == agent || h.MainPID("outrider-envoy") != keeper ||
			h.LiveEpoch().PID != envoy {
			t.Errorf("agent %d became %d; keeper %d became %d; Envoy %d became %d", agent,
				h.MainPID("outrider"), keeper,
				h.MainPID("outrider-envoy"), envoy, h.LiveEpoch().PID)
		}
	})
	step("kill -9", crash("KILL"))
	step("watchdog", crash("STOP"))
	step("re-execution of the keeper", h.replaceKeeper)
	step("reload again", systemctl("reload"))
	h.Eventually(time.Minute, "the epoch before has ended", func() bool {
		return !slices.ContainsFunc(h.Status().Epochs, func(e api.Epoch) bool {
			return e.State == api.EpochDraining
		})
	})
	report := running.Stop()
	t.Logf("%d requests, %d lost, %d idle connections closed under a request", report.Total,
		report.Lost, report.Retriable)
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("lost of %d requests: %v; marks %v", report.Total, lost, report.Marks)
	}
}

// When the agent is stopped under load, no connection is reset and no request times out. The stop
// takes at most 20 seconds.
func TestStopUnderLoad(t *testing.T) {
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	running := h.StartLoad(standard(), "-tcp", "") // a TCP connection would last as long as the load
	h.Eventually(time.Minute, "the load runs, and has its 36 connections",
		func() bool { return h.LiveEpoch().Connections >= 36 && h.EnvoyHTTPStatus() == "200" })
	running.Mark("stop")
	began := time.Now()
	h.MustRun(t, "systemctl", "stop", "outrider.service")
	took := time.Since(began)
	running.Mark("stopped")
	report := running.Stop()
	t.Logf("%d requests, the stop took %v", report.Total, took)
	resets := 0
	for name, class := range report.Classes {
		t.Logf("%s: %v", name, class.Outcomes)
		resets += class.Outcomes[load.OutcomeHardReset]
		if class.Outcomes[load.OutcomeTimeout] > 0 {
			t.Errorf("the stop cut exchanges of %s: %v", name, class.Outcomes)
		}
	}
	if resets > 0 {
		t.Errorf("the stop cut %d exchanges", resets)
	}
	if log := h.Journal("-u", "outrider.service"); strings.Contains(log, "may be reset") {
		t.Errorf("the doors did not close before the listeners:\n%s", log)
	}
	if took > 20*time.Second {
		t.Errorf("the stop took %v, with nothing to wait for", took)
	}
}

// While Envoy logs thousands of lines per second, at least 2,500 per second reach the journal, and
// the agent's memory hardly grows.
func TestEnvoyLogFlood(t *testing.T) {
	h := NewHost(t)
	h.WriteText("/etc/systemd/journald.conf.d/test.conf",
		"[Journal]\nSystemMaxUse=1G\nRuntimeMaxUse=1G\n")
	h.MustRun(t, "systemctl", "restart", "systemd-journald.service")
	h.MustRun(t, "systemctl", "start", "outrider.service")
	running := h.StartLoad(0.1)
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	agent, before := h.MainPID("outrider"), h.memory("outrider", "RssAnon")
	h.MustRun(t, "outrider", "log-level", "agent=debug", "envoy=debug")
	most := before
	parts.RepeatFor(floodTime, 200*time.Millisecond, func() {
		most = max(most, h.memory("outrider", "RssAnon"))
	})
	h.MustRun(t, "outrider", "log-level", "agent=info", "envoy=warning")
	running.Stop()
	h.MustRun(t, "journalctl", "--sync")
	lines, err := strconv.Atoi(
		h.RunScript("journalctl -q --no-pager -o cat OUTRIDER_COMPONENT=envoy | wc -l"))
	if err != nil {
		t.Fatal(err)
	}
	told := h.RunScript(
		"journalctl -q --no-pager -o cat _SYSTEMD_UNIT=outrider.service OUTRIDER_COMPONENT=agent " +
			"OUTRIDER_COMPONENT=keeper | grep -E 'suppressed|were lost' || true")
	t.Logf("%d lines, %.0f a second; the agent had %d kB, and %d kB at most; %q", lines,
		float64(lines)/floodTime.Seconds(), before>>10, most>>10, told)
	if lines < int(floodTime.Seconds())*floodRate/2 {
		t.Errorf("%d lines are no flood", lines)
	}
	if h.MainPID("outrider") != agent || most-before > mostGrowth {
		t.Errorf("agent %d became %d; it grew by %d bytes", agent, h.MainPID("outrider"),
			most-before)
	}
}

// memory returns field VmRSS, RssAnon or RssFile of the status of a unit's main process, in bytes.
// RssFile includes the pages of the program file, which an idle agent unmaps. They are mapped again
// when they are used, which is no growth.
func (h *Host) memory(unit, field string) int {
	h.t.Helper()
	kilobytes, err := strconv.Atoi(strings.Fields(h.ProcessStatusField(h.MainPID(unit), field))[0])
	if err != nil {
		h.t.Fatal(err)
	}
	return kilobytes << 10
}
