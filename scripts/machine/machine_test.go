package machine

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/scripts/parts"
)

// bootAlone is an environment variable. If it is set, this test program boots a machine, prints the
// machine's name and PID 1, and waits to be killed.
const bootAlone = "MACHINE_TEST_BOOT"

func TestMain(m *testing.M) {
	if os.Getenv(bootAlone) != "" {
		booted, err := Boot(context.Background(), Options{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(booted.name, booted.leader)
		select {}
	}
	goleak.VerifyTestMain(m)
}

// leftovers returns what is left of a machine on its host: mounts, directories, control groups and
// its PID 1.
func leftovers(t *testing.T, name string, leader int) []string {
	t.Helper()
	var left []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), name) {
		left = append(left, "mounts")
	}
	for _, pattern := range []string{filepath.Join(cgroupRoot(), cgroupPrefix+"*"+name),
		"/tmp/" + name + "*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	if syscall.Kill(leader, 0) == nil {
		left = append(left, fmt.Sprint("process ", leader))
	}
	return left
}

func TestMachine_BootAndPowerOff(t *testing.T) {
	shared := t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "built"), []byte("built here"),
		0o600); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	m := BootForTest(t, Options{BindMounts: []string{shared + ":/opt/build"}})
	t.Logf("booted in %v", time.Since(start))
	if state := m.MustRun(t, "systemctl", "is-system-running", "--wait"); state != "running" {
		t.Errorf("the system is %s:\n%s", state, m.MustRun(t, "systemctl", "--failed"))
	}
	if text := m.MustRun(t, "cat", "/opt/build/built"); text != "built here" {
		t.Errorf("the folder bound holds %q", text)
	}
	if out, err := m.Run(t.Context(), "touch", "/opt/build/x"); err == nil {
		t.Errorf("the folder bound can be written to: %s", out)
	}
	const unit = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo hello from $INVOCATION_ID'\n"
	if err := m.WriteFile(t.Context(), "/etc/systemd/system/hello.service", []byte(unit),
		0o644); err != nil {
		t.Fatal(err)
	}
	m.MustRun(t, "systemctl", "daemon-reload")
	m.MustRun(t, "systemctl", "start", "hello")
	// journald may not have read the output of a unit that has ended.
	m.MustRun(t, "journalctl", "--sync")
	if text := m.MustRun(t, "journalctl", "-u", "hello", "-o", "cat"); !strings.Contains(text,
		"hello from ") {
		t.Errorf("the journal holds %q", text)
	}
	if text := m.MustRun(t, "busctl", "call", "org.freedesktop.systemd1",
		"/org/freedesktop/systemd1",
		"org.freedesktop.DBus.Peer", "GetMachineId"); strings.Contains(text, "uninitialized") {
		t.Errorf("machine id: %s", text)
	}
	if _, err := os.Stat("/etc/systemd/system/hello.service"); err == nil {
		t.Error("what the machine wrote is on this one")
	}
	if _, err := m.Run(t.Context(), "sh", "-c", "exit 3"); err == nil ||
		!strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a program that fails: %v", err)
	}
	if err := m.PowerOff(t.Context()); err != nil {
		t.Error(err)
	}
	if left := leftovers(t, m.name, m.leader); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

// A reboot stops processes, preserves files, and starts enabled units.
func TestReboot(t *testing.T) {
	m := BootForTest(t, Options{})
	const unit = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo booted >>/var/boots'\n" +
		"[Install]\nWantedBy=multi-user.target\n"
	if err := m.WriteFile(t.Context(), "/etc/systemd/system/boots.service", []byte(unit),
		0o644); err != nil {
		t.Fatal(err)
	}
	m.MustRun(t, "systemctl", "enable", "boots.service")
	m.MustRun(t, "touch", "/run/gone")
	before := m.MustRun(t, "cat", "/etc/machine-id")
	for range 2 {
		if err := m.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.MustRun(t, "cat", "/var/boots"); got != "booted\nbooted" {
		t.Errorf("the enabled unit ran so often: %q", got)
	}
	if after := m.MustRun(t, "cat", "/etc/machine-id"); after != before {
		t.Errorf("the machine's id was %s and is %s", before, after)
	}
	if out, err := m.Run(t.Context(), "ls", "/run/gone"); err == nil {
		t.Errorf("/run is the one before: %s", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := m.PowerOff(ctx); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, m.Name(), m.Leader()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTwoAtOnce(t *testing.T) {
	var booting sync.WaitGroup
	machines := make([]*Machine, 2)
	for i := range machines {
		booting.Go(func() {
			m, err := Boot(t.Context(), Options{})
			if err != nil {
				t.Error(err)
				return
			}
			machines[i] = m
		})
	}
	booting.Wait()
	for i, m := range machines {
		if m == nil {
			continue
		}
		if state := m.MustRun(t, "systemctl", "is-system-running", "--wait"); state != "running" {
			t.Errorf("machine %d is %s", i, state)
		}
		if name := m.MustRun(t, "hostname"); name != m.Name() {
			t.Errorf("machine %d is called %s, not %s", i, name, m.Name())
		}
	}
	for _, m := range machines {
		if m == nil {
			continue
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if left := leftovers(t, m.name, m.leader); left != nil {
			t.Errorf("left behind: %q", left)
		}
	}
}

func TestMachine_EndsWithItsOwner(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	owner := exec.Command(self)
	owner.Env = append(os.Environ(), bootAlone+"=1")
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var name string
	var leader int
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	_, scanErr := fmt.Sscan(line, &name, &leader)
	if err := owner.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = owner.Wait() // returns an error, because the process was killed
	if scanErr != nil {
		t.Fatalf("the other process says %q", line)
	}
	parts.Eventually(t, endingTime, "the machine ends",
		func() bool { return syscall.Kill(leader, 0) != nil })
	// The first process of the PID namespace exits after all others. Until then, the mounts and the
	// control group exist.
	parts.Eventually(t, endingTime, "nothing of the machine is left", func() bool {
		sweep() // Boot calls sweep as well
		return leftovers(t, name, leader) == nil
	})
}

func TestBoot_FailureHasReason(t *testing.T) {
	_, err := Boot(t.Context(), Options{BindMounts: []string{"/nonexistent"}})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // cancel before Boot, because this process may be delayed for longer than a boot
	if _, err := Boot(ctx, Options{}); err == nil {
		t.Error("booted for nobody")
	}
}
