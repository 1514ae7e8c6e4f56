package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// After the doors are closed nobody comes in, and who is in is served.
func TestDoors(t *testing.T) {
	l := newLab(t)
	port := freePort(t)
	l.startEnvoy(0, envoyOptions{port: port}).live()
	inside, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inside.Close() }()
	for range 2 { // a stop that is tried again closes them again
		if err := l.client.CloseDoors(l.context()); err != nil {
			t.Fatal(err)
		}
	}
	if answer, err := get(port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %q, %v", answer, err)
	}
	if _, err := fmt.Fprint(inside, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4096)
	if n, err := inside.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 200") {
		t.Errorf("the connection that was there: %q, %v", answer[:n], err)
	}
}

// It asks for no privilege, and what waits to be accepted stays.
func TestUnplugWithoutPrivilege(t *testing.T) {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false) // as Envoy's
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	waiting, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := withoutPrivilege(func() error { return unplugOwn(int(file.Fd())) }); err != nil {
		t.Fatal(err)
	}
	if connection, err := net.Dial("tcp", listener.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v, %v", connection, err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = accepted.Close()
}

func unplugOwn(descriptor int) error {
	handle, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(handle) }()
	return unplug(handle, descriptor)
}

// withoutPrivilege runs do on a thread that is nobody's and has no capability, and ends with it.
func withoutPrivilege(do func() error) error {
	const nobody = 65534
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 && os.Geteuid() == 0 {
			result <- fmt.Errorf("become nobody: %w", errno)
			return
		}
		result <- do()
	}()
	return <-result
}

func TestComing(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	const tcp = head +
		"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000   990        0 700 1 0 100 0 0 10 0\n" + // three wait
		"   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   990        0 701 1 0 100 0 0 10 0\n" +
		"   2: 0100007F:1F91 00000000:0000 0A 00000000:00000005 00:00000000 00000000   990        0 702 1 0 100 0 0 10 0\n" +
		"   3: 0100007F:1F90 0200007F:D431 03 00000000:00000000 01:00000000 00000000     0        0 0 1 0 20 4 0 10 -1\n" + // one shakes hands
		"   4: 0100007F:1F91 0200007F:D432 03 00000000:00000000 01:00000000 00000000     0        0 0 1 0 20 4 0 10 -1\n" +
		"   5: 0100007F:1F90 0200007F:D433 01 00000000:00000009 00:00000000 00000000   990        0 703 1 0 20 4 30 10 -1\n"
	const tcp6 = head +
		"   0: 00000000000000000000000000000000:1F92 00000000000000000000000000000000:0000 0A 00000000:00000001 00:00000000 00000000   990        0 704 1 0 100 0 0 10 0\n"
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "self", "net"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"tcp": tcp, "tcp6": tcp6} {
		if err := os.WriteFile(filepath.Join(proc, "self", "net", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sockets, err := usage{proc}.listening()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for name, inodes := range map[string]map[string]bool{
		"both of a port": {"700": true, "701": true}, "IPv6": {"704": true}, "closed meanwhile": {"999": true}, "no listener": {"703": true},
	} {
		got[name] = sockets.coming(inodes)
	}
	want := map[string]uint64{"both of a port": 4, "IPv6": 1, "closed meanwhile": 0, "no listener": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
