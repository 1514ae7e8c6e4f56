package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/scripts/parts"
)

// deadSocket creates a socket file that no process has open.
func (m *machine) deadSocket(path string) string {
	m.t.Helper()
	path = filepath.Join(m.dir, path)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		m.t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	_ = listener.Close()
	return path
}

func TestCleanup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("cleanup is root's: its tests must run as root")
	}
	m := newMachine(t, nil)
	gone := []string{
		m.deadSocket("run/outrider.sock"), m.deadSocket("run/envoy/xds.sock"),
		m.deadSocket("keeper/admin-3.sock"),
		m.deadSocket("keeper/hot_restart_parent_1"), m.write("run/envoy/envoy-rev3.json", "{}"),
		m.write("keeper/base-id", "4711\n"),
		m.write("keeper/lock", ""), m.write("shm/envoy_shared_memory_47110", "x"),
		m.write("shm/envoy_shared_memory_536918020", "x"), m.write("capture/state.json", "{}"),
	}
	stays := []string{m.write("shm/envoy_shared_memory_0", "x"),
		m.write("shm/envoy_shared_memory_48110", "x"), m.write("keeper/kept.log", "x"),
		m.write("run/notes.txt", "x"), m.write("shm/envoy_shared_memory_47130", "x"),
		m.write("shm/envoy_shared_memory_47140", strings.Repeat("x", 4096))}
	// as if it belonged to another user's Envoy
	if err := os.Chown(stays[4], 12345, 12345); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(stays[5])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// stays[5] is mapped, as by a running Envoy.
	memory, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	// This socket is open, like a socket of systemd for socket activation.
	open, err := net.Listen("unix", filepath.Join(m.dir, "run", "keeper.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	stays = append(stays, filepath.Join(m.dir, "run", "keeper.sock"))

	code, out, problems := m.outrider("cleanup")
	if code != 0 || problems != "" {
		t.Fatalf("%d %s", code, problems)
	}
	for _, path := range gone {
		if exists(path) {
			t.Errorf("%s is still there", path)
		}
	}
	for _, path := range stays {
		if !exists(path) {
			t.Errorf("%s is gone", path)
		}
	}
	if !strings.Contains(out, "removed $DIR/shm/envoy_shared_memory_47110\n") {
		t.Errorf("it does not say what it did: %s", out)
	}
	if code, out, problems := m.outrider("cleanup"); code != 0 || out != "" || problems != "" {
		t.Errorf("once more: %d %s %s", code, out, problems)
	}
}

func TestCleanup_SparesLivingKeeper(t *testing.T) {
	m := newMachine(t, nil)
	stays := []string{m.deadSocket("keeper/admin-0.sock"), m.write("keeper/base-id", "4711\n"),
		m.write("shm/envoy_shared_memory_47110", "x"),
		m.write("run/envoy/envoy-rev0.json", "{}"), m.write("keeper/lock", "")}
	lock, err := os.Open(stays[4])
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	agents := m.deadSocket("run/outrider.sock")
	code, out, problems := m.outrider("cleanup")
	if code != 0 || !strings.Contains(out,
		"Envoy continues to run (its keeper is in $DIR/keeper): nothing of it was removed") {
		t.Errorf("%d %s %s", code, out, problems)
	}
	for _, path := range stays {
		if !exists(path) {
			t.Errorf("%s is gone", path)
		}
	}
	if exists(agents) {
		t.Error("the dead agent's socket is still there")
	}
}

func TestCleanup_SparesSocketOfRunningAgent(t *testing.T) {
	m := newMachine(t, &apitest.Backend{})
	if code, _, problems := m.outrider("cleanup"); code != 0 {
		t.Error(problems)
	}
	if code, _, problems := m.outrider("status"); code != 0 {
		t.Errorf("%d %s", code, problems)
	}
}

// TestCleanup_StopsKeeper stops a real keeper whose agent does not run.
func TestCleanup_StopsKeeper(t *testing.T) {
	m := newMachine(t, nil)
	folder := filepath.Join(m.dir, "keeper")
	var log bytes.Buffer
	command := exec.Command(parts.CopyProgram(t, "outrider-keeper"), "-folder", folder)
	command.Stderr = &log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() { _ = command.Process.Kill() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		client, err := keeper.Dial(ctx, filepath.Join(folder, "keeper.sock"))
		if err == nil {
			client.Close()
			break
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the keeper does not answer: %v: %s", err, &log)
		}
	}
	if code, out, problems := m.outrider("cleanup"); code != 0 ||
		!strings.Contains(out, "nothing of it was removed") {
		t.Fatalf("%d %s %s", code, out, problems)
	}
	code, out, problems := m.outrider("cleanup", "--stop")
	if code != 0 || !strings.Contains(out, "ended the keeper in $DIR/keeper") {
		t.Errorf("%d %s %s", code, out, problems)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Errorf("the keeper lives: %s", &log)
	}
	if left, _ := filepath.Glob(filepath.Join(folder, "*")); len(left) > 0 {
		t.Error(fmt.Sprint(left))
	}
}
