package parts

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running program with its output.
type Process struct {
	SyncBuffer
	command *exec.Cmd
	ended   chan struct{}
}

// StartProcess starts a program, which is killed when the test ends. If the test has failed, it
// logs the end of the program's output.
func StartProcess(t testing.TB, command *exec.Cmd) *Process {
	t.Helper()
	p := &Process{command: command, ended: make(chan struct{})}
	command.Stdout, command.Stderr = p, p
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(p.ended); _ = command.Wait() }()
	t.Cleanup(func() {
		p.Kill()
		if text := p.String(); t.Failed() {
			t.Logf("%s: %s", filepath.Base(command.Path), text[max(0, len(text)-8000):])
		}
	})
	return p
}

// Kill kills the program and waits until it has exited.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// CPUTime returns the CPU time that all threads of the program have used.
func (p *Process) CPUTime(t testing.TB) time.Duration {
	t.Helper()
	const scheduled = 2 // CPUCLOCK_SCHED: selects user and system time in nanoseconds
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^p.command.Process.Pid<<3|scheduled), &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Nano())
}
