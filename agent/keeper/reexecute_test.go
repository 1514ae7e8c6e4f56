package keeper

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// copyProgram copies the keeper's program to a path where a test may replace it.
func copyProgram(t *testing.T, to string) {
	t.Helper()
	from, err := os.Open(selfPath(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	// Prevent forks while the file is open for writing. A child that another test forks has the
	// descriptor until it executes its own program, and until then the copied program could not be
	// executed ("text file busy").
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	file, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, from); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil { // as a package manager does
		t.Fatal(err)
	}
}

func TestReexecute(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "outrider-keeper")
	copyProgram(t, program)
	l, port := newLabWith(t, program), parts.FreePort(t)
	o := envoyOptions{port: port, drain: 1, parentShutdown: 4}
	before := l.client.Info()
	first := l.startEnvoy(0, o).live()
	failed := l.startFake(0, false, "say=the last word", "exit=3")
	l.exitOf(failed.ID)
	quiet := l.startFake(0, false, "handle=ready", "unended=half a ", "wait", "say=line", "exit=4")
	l.says(quiet.ID, "ready")
	if err := l.client.SetNote(l.context(), first.ID,
		json.RawMessage(`{"kept":true}`)); err != nil {
		t.Fatal(err)
	}
	second := l.startEnvoy(1, o).live()
	// The parent dies during the overlap, so the keeper answers hot-restart messages for it, also
	// after the re-execution.
	if err := l.client.Signal(l.context(), first.ID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	died := time.Now()
	l.exitOf(first.ID)

	copyProgram(t, program) // the keeper's /proc/PID/exe is now a deleted file, as after an upgrade
	if err := unix.Kill(before.PID, unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	<-l.client.Done()
	l.client.Close()
	l.dial()
	after := l.client.Info()
	if after.PID != before.PID || after.BaseID != before.BaseID || after.Reexecuted != 1 {
		t.Errorf("info before %+v, after %+v", before, after)
	}
	if target, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", after.PID)); err != nil ||
		target != program {
		t.Errorf("the keeper runs %s (%v), not the program that is installed now", target, err)
	}
	if p := l.process(first.ID); p.Exit == nil || p.Exit.Signal != "SIGKILL" ||
		string(p.Note) != `{"kept":true}` {
		t.Errorf("the killed parent afterwards: %+v", p)
	}
	if p := l.process(failed.ID); p.Exit == nil || p.Exit.Code != 3 || len(p.LastLines) != 1 ||
		p.LastLines[0] != "the last word" {
		t.Errorf("the exit before is not as it was: %+v", p)
	}
	if p := l.process(second.ID); p.Exit != nil || p.PID != second.PID || !p.ParentedByKeeper {
		t.Errorf("epoch 1 afterwards: %+v", p)
	}

	// The re-executed keeper reaps children that it started before, continues in the middle of a
	// log line, and can start another epoch.
	if err := l.client.Signal(l.context(), quiet.ID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.says(quiet.ID, "half a line") // wait: the keeper may read the line after the exit
	if p := l.exitOf(quiet.ID); p.Exit.Code != 4 || len(p.LastLines) != 2 ||
		p.LastLines[1] != "half a line" {
		t.Errorf("after the re-execution it ended as %+v, %q", p.Exit, p.LastLines)
	}
	l.eventually("longer than the child tries", func() bool {
		return time.Since(died) > 15*time.Second
	})
	if p := l.process(second.ID); p.Exit != nil {
		t.Fatalf("epoch 1 ended with %+v, %q", p.Exit, p.LastLines)
	}
	third := l.startEnvoy(2, o).live()
	if p := l.exitOf(second.ID); p.Exit.Code != 0 {
		t.Errorf("epoch 1 ended with %+v", p.Exit)
	}
	if body, err := get(port); err != nil || body != "hello from "+third.ID {
		t.Errorf("after the next epoch: %q, %v", body, err)
	}

	// The children still get their parent death signal when the keeper's main thread ends.
	if err := unix.Kill(after.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.eventually("Envoy ends with the keeper", func() bool { return gone(third.PID) })
	if err := (sharedMemory{"/dev/shm"}).remove(after.BaseID); err != nil {
		t.Error(err)
	}
}

// Upgrade works while another agent is connected, and with a keeper of any protocol version.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.startFake(0, false, "wait", "exit=6")
	pid := l.client.Info().PID
	if err := Upgrade(l.context(), filepath.Join(l.folder, socketName)); err != nil {
		t.Fatal(err)
	}
	<-l.client.Done()
	l.client.Close()
	l.dial()
	if info := l.client.Info(); info.PID != pid || info.Reexecuted != 1 {
		t.Errorf("after the upgrade: %+v", info)
	}
	if now := l.process(p.ID); now.PID != p.PID || now.Exit != nil {
		t.Errorf("its process: %+v", now)
	}
	for as, want := range map[role]bool{roleAgent: false, roleUpgrade: true} {
		theirs := hello{Protocol: protocolVersion - 1, Info: &Info{}}
		if err := accepted(theirs, as); (err == nil) != want {
			t.Errorf("a keeper of an older protocol, as %s: %v", as, err)
		}
	}
}

func TestReexecute_KeepsRunningOnFailure(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "outrider-keeper")
	copyProgram(t, program)
	l := newLabWith(t, program)
	p := l.startFake(0, false, "handle=before", "wait", "say=after", "exit=5")
	l.says(p.ID, "before")
	for name, broken := range map[string]string{"a script that fails": "#!/bin/sh\nexit 1\n",
		"no program": "nonsense"} {
		if err := os.Remove(program); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, []byte(broken), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := l.client.reexecute(l.context()); !HasCode(err, CodeReexecuteFailed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// This program passes the check, but deletes itself, so exec fails.
	script := "#!/bin/sh\nrm -f " + program + "\nexit 0\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.client.reexecute(l.context()); !HasCode(err, CodeReexecuteFailed) {
		t.Errorf("a program that vanishes: %v", err)
	}
	if err := l.client.Signal(l.context(), p.ID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := l.exitOf(p.ID); exit.Exit.Code != 5 {
		t.Errorf("the keeper did not go on: %+v", exit.Exit)
	}
	l.says(p.ID, "after") // wait: the keeper may read the line after the exit
}

func TestReexecute_Repeatedly(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	pid := l.client.Info().PID
	p := l.startFake(0, false, "wait", "exit=6")
	for range 10 { // a signal may arrive while the re-executed keeper is still starting
		for range 3 {
			if err := unix.Kill(pid, unix.SIGUSR2); err != nil {
				t.Fatal(err)
			}
		}
		<-l.client.Done()
		l.client.Close()
		l.eventually("a keeper answers", func() bool {
			client, err := Dial(l.context(), filepath.Join(l.folder, socketName))
			if err == nil {
				l.client = client
				t.Cleanup(client.Close)
			}
			return err == nil
		})
	}
	l.eventually("the process is still the keeper's", func() bool {
		processes, err := l.client.Processes(l.context())
		if err != nil { // a further signal has made the keeper re-execute itself
			l.client.Close()
			l.dial()
			return false
		}
		return len(processes) == 1 && processes[0].PID == p.PID && processes[0].Exit == nil
	})
}
