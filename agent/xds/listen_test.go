package xds

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

func listen(t *testing.T, options ListenOptions) net.Listener {
	t.Helper()
	l, err := Listen(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestListen_SocketModeAndRemoval(t *testing.T) {
	dir := parts.ShortDir(t)
	path := filepath.Join(dir, "xds.sock")
	for _, mode := range []fs.FileMode{0, 0o600, 0o666} {
		l := listen(t, ListenOptions{Path: path, Mode: mode, Group: os.Getgid()})
		if mode == 0 {
			mode = 0o660
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != mode|fs.ModeSocket {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		if l.Addr().String() != path {
			t.Errorf("address %v", l.Addr())
		}
		if _, err := Listen(ListenOptions{Path: path}); err == nil || !strings.Contains(err.Error(),
			"another process serves") {
			t.Errorf("a second listener: %v", err)
		}
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

func TestListen_ReplacesOnlyStaleSockets(t *testing.T) {
	dir := parts.ShortDir(t)
	path := filepath.Join(dir, "xds.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	first := listen(t, ListenOptions{Path: path})
	// A closed listener must not remove another socket at its path.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	listen(t, ListenOptions{Path: path})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other's socket: %v", err)
	}

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(ListenOptions{Path: file}); err == nil || !strings.Contains(err.Error(),
		"is not a socket") {
		t.Errorf("on a file: %v", err)
	}
	if _, err := Listen(ListenOptions{Path: filepath.Join(dir, strings.Repeat("x",
		120))}); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("on a long path: %v", err)
	}
	if _, err := Listen(ListenOptions{Path: filepath.Join(dir, "none",
		"xds.sock")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
}

func TestListen_OnlyAllowedUsersConnect(t *testing.T) {
	self := uint32(os.Getuid())
	for _, test := range []struct {
		name    string
		users   []uint32
		allowed bool
	}{
		{"anybody", nil, true},
		{"this user", []uint32{self + 1, self}, true},
		{"another user", []uint32{self + 1}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := socketPath(t)
			l := listen(t, ListenOptions{Path: path, Users: test.users})
			accepted := make(chan net.Conn, 1)
			go func() {
				defer close(accepted)
				if c, err := l.Accept(); err == nil {
					accepted <- c
				}
			}()
			client, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			if !test.allowed {
				if _, err := client.Read(make([]byte, 1)); err == nil {
					t.Error("it was let in")
				}
				_ = l.Close()
				if c := <-accepted; c != nil {
					t.Error("it was accepted")
				}
				return
			}
			c := <-accepted
			defer func() { _ = c.Close() }()
			if p := PeerOfAddress(c.RemoteAddr()); p.UID != self || p.PID != int32(os.Getpid()) ||
				p.Address != path {
				t.Errorf("peer: %+v", p)
			}
		})
	}
}

// TestListen_LetsAFurtherGroupConnect checks that members of the socket's group and of ExtraGroup
// may connect, and that other users may not.
func TestListen_LetsAFurtherGroupConnect(t *testing.T) {
	folder := parts.ShortDir(t)
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "xds.sock")
	bound, err := Listen(ListenOptions{Path: path, Group: 4711, ExtraGroup: parts.NobodyUID})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bound.Close() }()
	for group, may := range map[int]bool{4711: true, parts.NobodyUID: true, 4712: false} {
		out, err := exec.CommandContext(t.Context(), "setpriv", "--reuid=4713",
			fmt.Sprint("--regid=", group), "--clear-groups", "test", "-w", path).CombinedOutput()
		if may != (err == nil) {
			t.Errorf("group %d: %v %s", group, err, out)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
