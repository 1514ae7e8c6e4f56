package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/rig"
)

// The keeper starts while Go initialises everything else, so its start has to be begun first. Go orders packages by what they import and by
// name: an import too many in agent/keeper/prestart, and it would come last.
func TestAKeeperIsBegunBeforeAllElse(t *testing.T) {
	r := rig.New(t, rig.Options{})
	command := exec.Command(r.Programs.Path("outriderd"), "--version")
	command.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	trace, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, trace)
	}
	early, first := -1, -1
	for i, line := range strings.Split(string(trace), "\n") {
		switch fields := strings.Fields(line); {
		case len(fields) < 2 || fields[0] != "init":
		case fields[1] == "outrider.org/outrider/cmd/outriderd/early":
			early = i
		case first < 0 && (fields[1] == "reflect" || strings.HasPrefix(fields[1], "google.golang.org/protobuf/")):
			first = i
		}
	}
	if early < 0 || first < 0 || early > first {
		t.Errorf("the keeper is begun in line %d, reflect and protobuf come from line %d on:\n%s", early, first, trace)
	}
}

// arguments of a process, as ps shows them.
func arguments(t *testing.T, pid int) string {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ")
}

func TestTheKeeperThatWaitedIsTheKeeper(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.StartReady()
	keepers := r.Pids("outrider-keeper")
	if len(keepers) != 1 || !strings.Contains(arguments(t, keepers[0]), "-await-fd 3 -for "+filepath.Join(r.Dir, "outrider.toml")) {
		t.Fatalf("keepers %v", keepers)
	}
	r.KillAgent()
	r.StartReady() // its own one waits in vain
	rig.Eventually(t, 30*time.Second, "one keeper is left", func() bool {
		now := r.Pids("outrider-keeper")
		return len(now) == 1 && now[0] == keepers[0]
	})
	r.Signal(keepers[0], 12) // SIGUSR2: its next image has the arguments it was told
	rig.Eventually(t, 20*time.Second, "it is replaced in place", func() bool {
		return strings.Contains(arguments(t, keepers[0]), "-folder "+filepath.Join(r.Dir, "run", "keeper"))
	})
	if result := r.Outrider("reload"); result.Exit != 0 {
		t.Errorf("reload: %s", result.Err)
	}
}

// Nor a zombie: who starts agents may not reap what they leave (this test does not).
func TestNoKeeperStaysWithoutAnAgent(t *testing.T) {
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
		text, _ := os.ReadFile(process) // "": it has ended
		if _, after, found := strings.Cut(string(text), " (outrider-keeper) "); found && strings.HasPrefix(after[1:], fmt.Sprintf(" %d ", os.Getpid())) {
			t.Errorf("a keeper is left: %s", text)
		}
	}
}

// A keeper of an older package knows nothing of waiting, and ends.
func TestAKeeperThatCannotWaitIsStartedWhenItIsNeeded(t *testing.T) {
	r := rig.New(t, rig.Options{})
	keeper, agent := r.Programs.Path("outrider-keeper"), r.Programs.Path("outriderd")
	bootstrap := r.Programs.Path("outrider-bootstrap")
	r.Programs.Dir = filepath.Join(r.Dir, "programs")
	r.Write("programs/outrider-keeper", "#!/bin/sh\ncase \"$1\" in -await-fd) echo unknown flag >&2; exit 2;; esac\nexec '"+keeper+"' \"$@\"\n")
	if err := os.Chmod(r.Programs.Path("outrider-keeper"), 0o755); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{agent: "outriderd", bootstrap: "outrider-bootstrap"} {
		if out, err := exec.Command("cp", from, r.Programs.Path(to)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	r.StartReady()
	if code, _, err := r.Get("/hello"); err != nil || code != 200 {
		t.Errorf("GET: %d %v", code, err)
	}
}
