package api

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// TestDialSocket_WaitsForTheQueue checks that a client retries while the socket's backlog is full,
// and connects once the server accepts a connection.
func TestDialSocket_WaitsForTheQueue(t *testing.T) {
	path := filepath.Join(parts.ShortDir(t), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}),
		unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		connection, err := net.Dial("unix", path)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connection.Close() }()
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := dialSocket(short, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a full queue: %v", err)
	}
	accepted, _, err := unix.Accept(fd) // frees a place in the backlog
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(accepted) }()
	connection, err := dialSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = connection.Close()
}
