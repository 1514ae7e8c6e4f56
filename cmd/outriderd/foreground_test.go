package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/rig"
)

// arguments returns the command line of a process.
func arguments(t *testing.T, pid int) string {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ")
}

// An agent in the foreground starts its keeper. The next agent uses the same keeper, which may have
// re-executed itself. When an agent is stopped by a signal, its keeper ends.
func TestForegroundKeeper_IsAdoptedAndEndsWithAgent(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.StartReady()
	folder := "-folder " + filepath.Join(r.Dir, "run", "keeper")
	keepers := r.ProcessIDs("outrider-keeper")
	if len(keepers) != 1 || !strings.Contains(arguments(t, keepers[0]), folder) {
		t.Fatalf("keepers %v", keepers)
	}
	r.KillAgent()
	daemon := r.StartReady()
	if now := r.ProcessIDs("outrider-keeper"); len(now) != 1 || now[0] != keepers[0] {
		t.Fatalf("keepers after a restart: %v, want %v", now, keepers)
	}
	r.Signal(keepers[0], syscall.SIGUSR2) // makes the keeper re-execute its binary
	rig.Eventually(t, time.Minute, "the keeper replaces its image", func() bool {
		now := arguments(t, keepers[0])
		return strings.Contains(now, folder) && strings.Contains(now, " -state-fd=")
	})
	if result := r.RunOutrider("reload"); result.ExitCode != 0 {
		t.Errorf("reload: %s", result.Stderr)
	}
	r.Signal(daemon.Process.Pid, syscall.SIGTERM)
	if exit := daemon.Wait(t, 30*time.Second); exit != 0 {
		t.Errorf("exit %d:\n%s", exit, daemon.Output())
	}
	rig.Eventually(t, time.Minute, "the keeper ends", func() bool {
		return len(r.ProcessIDs("outrider-keeper")) == 0
	})
}

// An agent that refuses its configuration leaves no keeper. Even a zombie would count: the test is
// a subreaper, and reaps no children.
func TestForegroundKeeper_IsAbsentAfterInvalidConfig(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	r := rig.New(t, rig.Options{TOML: "[envoy]\nlog_level = \"loud\"\n"})
	if exit := r.Start().Wait(t, 30*time.Second); exit != 78 {
		t.Errorf("exit %d", exit)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(processes) == 0 {
		t.Fatal(processes, err)
	}
	for _, process := range processes {
		text, _ := os.ReadFile(process) // empty if the process has ended
		_, after, found := strings.Cut(string(text), " (outrider-keeper) ")
		if found && strings.HasPrefix(after[1:], fmt.Sprintf(" %d ", os.Getpid())) {
			t.Errorf("a keeper is left: %s", text)
		}
	}
}
