package hostconflict

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"outrider.org/outrider/agent/sockdiag"
)

func TestProgram_NamesWhoListens(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s (pid %d", strings.TrimSpace(string(comm)), os.Getpid())
	sockets, err := sockdiag.ListeningSockets()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range sockets {
		if s.Address.String() == listener.Addr().String() {
			found = true
			if got := ProgramOf(s); !strings.HasPrefix(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
	}
	if !found {
		t.Errorf("%s is not among %v", listener.Addr(), sockets)
	}
	// The process name contains a line break and a terminal control sequence, which must be
	// removed.
	program := filepath.Join(t.TempDir(), "x\n\x1b]0;evil\a")
	if err := os.Symlink("/bin/sleep", program); err != nil {
		t.Fatal(err)
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(program, "60")
	child.ExtraFiles = []*os.File{file}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = child.Process.Kill(), child.Wait() }()
	_ = file.Close()
	_ = listener.Close()
	sockets, err = sockdiag.ListeningSockets()
	if err != nil {
		t.Fatal(err)
	}
	told := ""
	for _, s := range sockets {
		if s.Address.String() == listener.Addr().String() {
			told = ProgramOf(s)
		}
	}
	if want := fmt.Sprintf("x]0;evil (pid %d", child.Process.Pid); !strings.HasPrefix(told, want) {
		t.Errorf("it is told as %q, want %q", told, want)
	}
	if got := ProgramOf(sockdiag.Socket{}); got != "" {
		t.Errorf("of no socket: %q", got)
	}
}

func TestUnitOf(t *testing.T) {
	root := t.TempDir()
	for path, want := range map[string]string{
		"system.slice/nginx.service":                    "nginx.service",
		"outrider.slice/outrider@a.service/agent":       "outrider@a.service",
		"user.slice/user-0.slice/session-3.scope":       "session-3.scope",
		"machine.slice/a.scope/payload/x.service/inner": "x.service",
		"user.slice": "",
	} {
		folder := filepath.Join(root, path)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		var status syscall.Stat_t
		if err := syscall.Stat(folder, &status); err != nil {
			t.Fatal(err)
		}
		if got := unitOf(root, status.Ino); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := unitOf(root, 1); got != "" {
		t.Errorf("of no group: %q", got)
	}
}
