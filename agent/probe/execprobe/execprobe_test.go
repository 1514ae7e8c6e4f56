package execprobe

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestExec_TakesTheExitStatus(t *testing.T) {
	for _, test := range []struct{ script, want string }{
		{"exit 0", ""}, {"echo down >&2; exit 3", "exit status 3: down"},
		{"yes | head -c 100000; exit 1", "exit status 1: y"},
	} {
		got := message(Exec(t.Context(), "/bin/sh", []string{"sh", "-c", test.script}))
		if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" ||
			len(got) > outputRead+20 {
			t.Errorf("%s: %.300q", test.script, got)
		}
	}
	if err := Exec(t.Context(), "/no/such/program", []string{"program"}); err == nil {
		t.Error("a missing program succeeds")
	}
}

func TestExec_KillsTheGroup(t *testing.T) {
	for script, fails := range map[string]bool{
		"sleep 1000 & echo $! >$0; wait": true, "sleep 1000 >/dev/null 2>&1 & echo $! >$0": false} {
		file := filepath.Join(t.TempDir(), "pid")
		written := func() bool {
			text, err := os.ReadFile(file)
			return err == nil && len(text) > 0
		}
		ctx, cancel := context.WithCancel(t.Context())
		// This script waits for its child until the test ends ctx.
		if fails {
			go func() { parts.Poll(time.Minute, written); cancel() }()
		}
		err := Exec(ctx, "/bin/sh", []string{"sh", "-c", script, file})
		cancel()
		if (err != nil) != fails {
			t.Errorf("%s: %v", script, err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		status := filepath.Join("/proc", strings.TrimSpace(string(text)), "cmdline")
		parts.Eventually(t, time.Minute, "the child has ended", func() bool {
			line, err := os.ReadFile(status)
			return err != nil || len(line) == 0 // the command line of a zombie is empty
		})
	}
}

func TestExec_HasNoEnvironmentOfTheAgent(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "/run/credentials")
	t.Setenv("HOME", "/home")
	if err := Exec(t.Context(), "/bin/sh", []string{"sh", "-c",
		`test -z "$CREDENTIALS_DIRECTORY" && test -n "$PATH" && test "$HOME" = /home`}); err != nil {
		t.Error(err)
	}
}

func TestFind_RefusesWhatOthersCouldReplace(t *testing.T) {
	program := filepath.Join(t.TempDir(), "check")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if path, err := Find(program, 0, os.Geteuid()); err != nil || path != program {
		t.Errorf("%q, %v", path, err)
	}
	if err := os.Chmod(program, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := Find(program, 0, os.Geteuid())
	if err == nil || !strings.Contains(err.Error(), "chmod go-w "+program) {
		t.Errorf("writable for others: %v", err)
	}
}

func listen(t *testing.T) (listener *net.UnixListener, socket string) {
	t.Helper()
	socket = filepath.Join(parts.ShortDir(t), "p.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener, socket
}

// serve accepts one connection of a new socket and serves it as outrider-probe does. The channel
// receives the result of Serve.
func serve(t *testing.T) (socket string, ended <-chan error) {
	t.Helper()
	listener, socket := listen(t)
	done := make(chan error, 1)
	go func() {
		connection, err := listener.AcceptUnix()
		if err == nil {
			err = Serve(connection, os.Geteuid())
			_ = connection.Close()
		}
		done <- err
	}()
	return socket, done
}

func TestRun(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, test := range []struct {
		arguments []string
		want      string // beginning of the error
	}{
		{[]string{"true"}, ""},
		{[]string{"sh", "-c", `test "$0" = "$1"`, long, long}, ""},
		{[]string{"sh", "-c", "echo down >&2; exit 3"}, "exit status 3: down; it runs without rights"},
		{[]string{"no-such-program"}, `exec: "no-such-program"`},
		{nil, "outrider-probe@.service has ended"},
	} {
		socket, ended := serve(t)
		if got := message(NewRunner(socket).Run(t.Context(), test.arguments)); test.want == "" && got != "" ||
			!strings.HasPrefix(got, test.want) {
			t.Errorf("%.50q: %q, want %q", test.arguments, got, test.want)
		}
		if err := <-ended; (err != nil) != (test.arguments == nil) {
			t.Errorf("%.50q: outrider-probe ended with %v", test.arguments, err)
		}
	}
}

func TestRun_EndOfContextEndsTheCommand(t *testing.T) {
	socket, ended := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := NewRunner(socket).Run(ctx, []string{"sleep", "1000"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("outrider-probe goes on")
	}
}

func TestRun_WithoutSocketNamesTheCure(t *testing.T) {
	err := NewRunner(filepath.Join(t.TempDir(), "p.sock")).Run(t.Context(), []string{"true"})
	if err == nil || !strings.Contains(err.Error(), "systemctl start outrider-probe.socket") {
		t.Error(err)
	}
}

// A service that systemd refuses or cannot start reads no request. The error then names the journal
// command that shows why.
func TestRun_NamesTheJournalOfAServiceThatReadsNothing(t *testing.T) {
	listener, socket := listen(t)
	go func() {
		for {
			connection, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			// Close the connection after the request has arrived, without reading it.
			raw, _ := connection.SyscallConn()
			_ = raw.Read(func(fd uintptr) bool {
				n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK)
				return n > 0 || err == nil
			})
			_ = connection.Close()
		}
	}()
	err := NewRunner(socket).Run(t.Context(), []string{"true"})
	if err == nil || !strings.Contains(err.Error(), "journalctl -u 'outrider-probe*'") {
		t.Error(err)
	}
}

// While a command cannot be killed, the Runner starts no other command.
func TestRun_StartsNoCommandBesideOneThatDoesNotEnd(t *testing.T) {
	listener, socket := listen(t)
	accepted := make(chan *net.UnixConn, 10)
	go func() {
		for {
			connection, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			accepted <- connection
		}
	}()
	runner := NewRunner(socket)
	run := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return runner.Run(ctx, []string{"true"})
	}
	for range 5 {
		if err := run(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a command that does not end: %v", err)
		}
	}
	stuck := <-accepted
	if more := len(accepted); more != 0 {
		t.Errorf("%d commands run beside it", more)
	}
	// The Runner has closed its end of the connection, which requests the end of the command.
	if _, err := io.Copy(io.Discard, stuck); err != nil {
		t.Error(err)
	}
	_ = stuck.Close()
	go func() {
		connection := <-accepted
		_ = Serve(connection, os.Geteuid())
		_ = connection.Close()
	}()
	if err := runner.Run(t.Context(), []string{"true"}); err != nil {
		t.Errorf("after its end: %v", err)
	}
}
