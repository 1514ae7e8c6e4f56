package execprobe

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
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
		parts.Eventually(t, 5*time.Second, "the child has ended", func() bool {
			line, err := os.ReadFile(status)
			return err != nil || len(line) == 0 // a zombie has none
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

// serve serves one connection of a socket as outrider-probe does. The channel returned has its end.
func serve(t *testing.T) (socket string, ended <-chan error) {
	t.Helper()
	socket = filepath.Join(parts.ShortDir(t), "p.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	done := make(chan error, 1)
	go func() {
		connection, err := listener.Accept()
		if err == nil {
			err = Serve(connection.(*net.UnixConn), os.Geteuid())
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
		want      string // begins the error
	}{
		{[]string{"true"}, ""},
		{[]string{"sh", "-c", `test "$0" = "$1"`, long, long}, ""},
		{[]string{"sh", "-c", "echo down >&2; exit 3"}, "exit status 3: down; it runs without rights"},
		{[]string{"no-such-program"}, `exec: "no-such-program"`},
		{nil, "outrider-probe@.service has ended"},
	} {
		socket, ended := serve(t)
		if got := message(Run(t.Context(), socket, test.arguments)); test.want == "" && got != "" ||
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
	err := Run(ctx, socket, []string{"sleep", "1000"})
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
	err := Run(t.Context(), filepath.Join(t.TempDir(), "p.sock"), []string{"true"})
	if err == nil || !strings.Contains(err.Error(), "systemctl start outrider-probe.socket") {
		t.Error(err)
	}
}
