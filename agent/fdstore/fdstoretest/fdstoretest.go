// Package fdstoretest provides a fake of systemd's file descriptor store for tests.
package fdstoretest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/fdstore"
)

// Manager stores descriptors as systemd does. It belongs to the test's goroutine.
type Manager struct {
	t       testing.TB
	address string
	socket  int
	stored  []*os.File
}

// New returns a manager that stores nothing yet.
func New(t testing.TB) *Manager {
	t.Helper()
	m := &Manager{t: t, address: filepath.Join(t.TempDir(), "notify")}
	var err error
	if m.socket, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.receive()
		m.remove("")
		_ = unix.Close(m.socket)
	})
	if err := unix.Bind(m.socket, &unix.SockaddrUnix{Name: m.address}); err != nil {
		t.Fatal(err)
	}
	return m
}

// StartService returns the store of a service that starts now and inherits what is stored.
func (m *Manager) StartService() *fdstore.Store {
	m.t.Helper()
	m.receive()
	var inherited []*os.File
	for _, f := range m.stored {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			m.t.Fatal(err)
		}
		inherited = append(inherited, os.NewFile(uintptr(fd), f.Name()))
	}
	return fdstore.New(m.address, inherited)
}

// Count returns how many descriptors of a name are stored.
func (m *Manager) Count(name string) (n int) {
	m.t.Helper()
	m.receive()
	for _, f := range m.stored {
		if f.Name() == name {
			n++
		}
	}
	return n
}

// receive processes all pending messages of the stores.
func (m *Manager) receive() {
	m.t.Helper()
	buffer, control := make([]byte, 4096), make([]byte, 4096)
	for {
		n, nc, _, _, err := unix.Recvmsg(m.socket, buffer, control,
			unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err != nil {
			return
		}
		text := string(buffer[:n])
		_, name, _ := strings.Cut(text, "FDNAME=")
		if strings.HasPrefix(text, "FDSTOREREMOVE=1\n") {
			m.remove(name)
			continue
		}
		messages, err := unix.ParseSocketControlMessage(control[:nc])
		if err != nil || len(messages) != 1 || !strings.HasPrefix(text, "FDSTORE=1\n") {
			m.t.Fatalf("%q, %v", text, err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			m.t.Fatal(err)
		}
		for _, fd := range fds {
			m.stored = append(m.stored, os.NewFile(uintptr(fd), name))
		}
	}
}

// remove closes and removes the files of a name; "" = all files.
func (m *Manager) remove(name string) {
	var left []*os.File
	for _, f := range m.stored {
		if name != "" && f.Name() != name {
			left = append(left, f)
		} else {
			_ = f.Close()
		}
	}
	m.stored = left
}
