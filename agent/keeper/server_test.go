package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/rpc"
	"outrider.org/outrider/scripts/parts"
)

func TestStart_ChildInheritsNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.startFake(3, false, "environment", "folder", "descriptors", "say=all", "exit=0")
	l.says(p.ID, "all") // wait: the keeper may read the line after the exit
	p = l.exitOf(p.ID)
	want := []string{fakeEnvironment + "=1", "/", "0 /dev/null"}
	if len(p.LastLines) < 5 || strings.Join(p.LastLines[:3], "|") != strings.Join(want, "|") {
		t.Fatalf("%q, want %q first", p.LastLines, want)
	}
	for _, line := range p.LastLines[5:] { // the fake's descriptors after stdin, stdout and stderr
		if strings.Contains(line, "keeper") || strings.Contains(line, "socket:") ||
			strings.Contains(line, "lock") {
			t.Errorf("the child inherited %s", line)
		}
	}
}

func TestExits(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tests := []struct {
		step string
		want Exit
	}{
		{"exit=0", Exit{}},
		{"exit=41", Exit{Code: 41}},
		{"kill=9", Exit{Code: -1, Signal: "SIGKILL"}},
		{"kill=6", Exit{Code: -1, Signal: "SIGABRT"}},
	}
	for _, test := range tests {
		p := l.exitOf(l.startFake(0, false, "lines=50", test.step).ID)
		if test.step != "kill=6" && (p.Exit.Code != test.want.Code ||
			p.Exit.Signal != test.want.Signal) {
			t.Errorf("%s: %+v, want %+v", test.step, *p.Exit, test.want)
		}
		l.eventually("the last lines", func() bool {
			p = l.process(p.ID)
			return len(p.LastLines) == MaxLastLines && p.LastLines[0] == "line 30" ||
				test.step == "kill=6"
		})
		if err := l.client.Forget(l.context(), p.ID); err != nil {
			t.Error(err)
		}
	}
	if left, err := l.client.Processes(l.context()); err != nil || len(left) != 0 {
		t.Errorf("not forgotten: %v, %v", left, err)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.startFake(4, false, "say=one", "long=10000", "say=three", "exit=2")
	var lines []string
	exited := false
	for deadline := time.After(20 * time.Second); !exited || len(lines) < 3; {
		select {
		case event := <-l.client.Events():
			if event.Exited != nil {
				exited = event.Exited.ID == p.ID && event.Exited.Exit.Code == 2 &&
					len(event.Exited.LastLines) == 3
			}
			if event.Log != nil && event.Log.EpochNumber == 4 {
				lines = append(lines, event.Log.Lines...)
			}
		case <-deadline:
			t.Fatalf("lines %q, exit %v", lines, exited)
		}
	}
	if lines[0] != "one" || len(lines[1]) > MaxLine+40 ||
		!strings.HasSuffix(lines[1], fmt.Sprintf("[%d bytes cut]", 10000-MaxLine)) ||
		lines[2] != "three" {
		t.Errorf("%d, %.60q …", len(lines), lines)
	}
}

func TestEvents_FloodWithSlowAgent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	pid := l.client.Info().PID
	l.startFake(0, false, "flood")
	// Events are not read: the client drops lines and, after it has disconnected, the keeper does.
	l.eventually("requests are answered in a flood", func() bool { l.process("p1"); return true })
	l.client.Close()
	lines, dropped := 0, uint64(0)
	l.dial()
	for deadline := time.After(20 * time.Second); dropped == 0; {
		select {
		case event := <-l.client.Events():
			if event.Log != nil {
				lines, dropped = lines+len(event.Log.Lines), dropped+event.Log.Dropped
			}
		case <-deadline:
			t.Fatalf("%d lines, none dropped", lines)
		}
	}
	memory := residentBytes(pid)
	if memory == 0 || memory > 120<<20 { // the race detector multiplies the keeper's memory
		t.Errorf("the keeper has %d MB", memory>>20)
	}
	if err := l.client.Signal(l.context(), "p1", unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.exitOf("p1")
}

func TestDial_OneAgentAtATime(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	socket := filepath.Join(l.folder, socketName)
	_, err := Dial(l.context(), socket)
	var busy *BusyError
	if !errors.Is(err, ErrBusy) || !errors.As(err, &busy) || busy.PID != os.Getpid() {
		t.Errorf("the second agent: %v", err)
	}
	upgrader, err := dial(l.context(), socket, roleUpgrade)
	if err != nil {
		t.Fatal(err)
	}
	defer upgrader.Close()
	if err := upgrader.Shutdown(l.context()); !HasCode(err, CodeForbidden) {
		t.Errorf("role %q ends the keeper: %v", roleUpgrade, err)
	}
	for range 20 { // an agent can connect immediately after the previous one has disconnected
		l.client.Close()
		l.dial()
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first := l.startFake(0, true, "wait")
	spec := func(id string, epoch int, hot bool) StartSpec {
		return StartSpec{ID: id, RestartEpoch: epoch, HotRestart: hot, Path: selfPath(t),
			Args: []string{"wait"}, Env: []string{fakeEnvironment + "=1"}}
	}
	missing := spec("m", 0, false)
	missing.Path = "/nowhere/envoy"
	relative := spec("m", 0, false)
	relative.Path = "envoy"
	long := spec("m", 0, false)
	long.Note = []byte(`"` + strings.Repeat("n", maxNote) + `"`)
	for _, test := range []struct {
		name string
		spec StartSpec
		want Code
	}{
		{"id is taken", spec(first.ID, 1, true), CodeIDInUse},
		{"epoch lives", spec("x", 0, true), CodeSocketsInUse},
		{"same sockets", spec("x", 3, true), CodeSocketsInUse},
		{"no parent", spec("x", 2, true), CodeNoParent},
		{"no id", spec("", 0, false), CodeInvalid},
		{"no program", missing, CodeCannotExecute},
		{"relative path", relative, CodeInvalid},
		{"long note", long, CodeInvalid},
	} {
		if _, err := l.client.Start(l.context(), test.spec); !HasCode(err, test.want) {
			t.Errorf("%s: %v, want %s", test.name, err, test.want)
		}
	}
	for name, test := range map[string]struct {
		err  error
		want Code
	}{
		"signal unknown":  {l.client.Signal(l.context(), "x", unix.SIGTERM), CodeNotFound},
		"no such signal":  {l.client.Signal(l.context(), first.ID, 0), CodeInvalid},
		"forget living":   {l.client.Forget(l.context(), first.ID), CodeEnvoysLive},
		"clean up living": {l.client.RemoveEnvoyFiles(l.context()), CodeEnvoysLive},
	} {
		if !HasCode(test.err, test.want) {
			t.Errorf("%s: %v, want %s", name, test.err, test.want)
		}
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	result, err := l.client.Run(l.context(), "/bin/sh",
		[]string{"-c", "echo out; echo err >&2; exit 7"})
	if err != nil || string(result.Stdout) != "out\n" || string(result.Stderr) != "err\n" ||
		result.Exit.Code != 7 {
		t.Errorf("%+v, %v", result, err)
	}
	result, err = l.client.Run(l.context(), "/bin/sh", []string{"-c", "head -c 1000000 /dev/zero"})
	if err != nil || len(result.Stdout) != maxOutput || !result.Truncated || result.Exit.Code != 0 {
		t.Errorf("%d bytes, %v, %v", len(result.Stdout), result.Truncated, err)
	}
	if _, err = l.client.Run(l.context(), "/nowhere", nil); !HasCode(err, CodeCannotExecute) {
		t.Errorf("nothing to run: %v", err)
	}
	replaced := filepath.Join(t.TempDir(), "replaced")
	writer, err := os.OpenFile(replaced, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	if _, err = l.client.Run(l.context(), replaced, nil); !HasCode(err, CodeInternal) {
		t.Errorf("a program that is being written: %v", err)
	}
	ctx, cancel := context.WithTimeout(l.context(), 200*time.Millisecond)
	defer cancel()
	started := time.Now()
	if result, err = l.client.Run(ctx, "/bin/sh", []string{"-c", "sleep 60; true"}); err == nil &&
		!result.TimedOut || time.Since(started) > 5*time.Second {
		t.Errorf("a command that hangs: %+v, %v", result, err)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	info := l.client.Info()
	good := l.startFake(0, false, "wait")
	stubborn := l.startFake(1, false, "handle=here", "stay")
	l.says(stubborn.ID, "here")
	started := time.Now()
	if err := l.client.Shutdown(l.context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(started); took < terminateWait || took > 2*terminateWait {
		t.Errorf("SIGKILL after %v", took)
	}
	for _, pid := range []int{good.PID, stubborn.PID} {
		if !gone(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	l.eventually("the keeper is gone", func() bool { return gone(info.PID) })
	if left, err := os.ReadDir(l.folder); err != nil || len(left) > 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
	memory := sharedMemory{"/dev/shm"}
	if exists, _ := memory.own(info.BaseID); exists {
		t.Error("the shared memory is left")
	}
}

func TestKeeper_SurvivesMalformedMessages(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	socket := filepath.Join(l.folder, socketName)
	for _, nonsense := range []string{"", "GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x02{}",
		"\xff\xff\xff\xff", "\x00\x00\x00\x05[1,2]"} {
		connection, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = connection.Write([]byte(nonsense))
		_ = connection.Close()
	}
	for _, signal := range []unix.Signal{unix.SIGHUP, unix.SIGPIPE} {
		if err := unix.Kill(l.client.Info().PID, signal); err != nil {
			t.Fatal(err)
		}
	}
	p := l.startFake(0, false, "exit=1")
	l.exitOf(p.ID)
}

func TestIdleExit(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "k")
	client, err := StartKeeper(t.Context(), LaunchOptions{
		// On a busy machine a thread may not run for a second or two before it connects.
		Folder: folder, Binary: selfPath(t), Env: keeperEnvironmentOf(), IdleTimeout: 3 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	pid := client.Info().PID
	client.Close()
	l := &lab{T: t}
	l.eventually("the keeper leaves", func() bool { return unix.Kill(pid, 0) != nil })
}

func TestDial_NotRunning(t *testing.T) {
	t.Parallel()
	if _, err := Dial(t.Context(), filepath.Join(t.TempDir(), "none.sock")); !errors.Is(err,
		ErrNotRunning) {
		t.Error(err)
	}
}

func TestStartKeeper_TwoAgentsStartOne(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.client.Close()
	l.end()
	results := make(chan error, 4)
	clients := make(chan *Client, 4)
	for range 4 {
		go func() {
			client, err := StartKeeper(l.context(), LaunchOptions{
				Folder: l.folder, Binary: selfPath(t), Env: keeperEnvironmentOf(),
				IdleTimeout: 20 * time.Second,
			})
			if err == nil {
				clients <- client
			}
			results <- err
		}()
	}
	connected := 0
	for range 4 {
		switch err := <-results; {
		case err == nil:
			connected++
		case !errors.Is(err, ErrBusy):
			t.Errorf("%v", err)
		}
	}
	if connected != 1 {
		t.Fatalf("%d agents are connected", connected)
	}
	l.client = <-clients
}

// While the keeper hangs and its socket is full, no call of a client takes longer than its deadline
// and the time-out of the connection.
func TestClient_StoppedKeeperBlocksNoCall(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.startFake(0, false, "wait")
	pid := l.client.Info().PID
	resume := parts.PauseProcess(t, pid)
	defer resume()
	note := json.RawMessage(`"` + strings.Repeat("n", maxNote-2) + `"`)
	lost := make(chan error, 1)
	go func() {
		for {
			ctx, cancel := context.WithTimeout(l.context(), 10*time.Millisecond)
			began := time.Now()
			err := l.client.SetNote(ctx, p.ID, note)
			cancel()
			if took := time.Since(began); took >= rpc.PeerTimeout {
				t.Errorf("a call with a deadline of 10 ms took %v", took)
			}
			if errors.Is(err, ErrClosed) || !errors.Is(err, context.DeadlineExceeded) {
				lost <- err
				return
			}
		}
	}()
	select {
	case err := <-lost:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("with a full socket: %v", err)
		}
	case <-time.After(6 * rpc.PeerTimeout):
		t.Error("a call blocks")
	}
	select {
	case <-l.client.Done():
	default:
		t.Error("the connection is not lost")
	}
	resume()
	l.client.Close()
	l.eventually("the keeper serves the next connection", func() bool {
		client, err := Dial(l.context(), filepath.Join(l.folder, socketName))
		if err != nil {
			return false
		}
		l.client = client
		t.Cleanup(client.Close)
		return l.process(p.ID).Exit == nil
	})
}
