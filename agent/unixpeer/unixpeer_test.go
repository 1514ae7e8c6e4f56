package unixpeer

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	peer, err := OfConn(server.(*net.UnixConn))
	if err != nil {
		t.Fatal(err)
	}
	groups := []uint32{}
	numbers, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range numbers {
		groups = append(groups, uint32(number))
	}
	if peer.PID != os.Getpid() || peer.UID != uint32(os.Getuid()) ||
		peer.GID != uint32(os.Getgid()) || !slices.Equal(peer.Groups, groups) {
		t.Errorf("%+v", peer)
	}
	_ = server.Close()
	if peer, err := OfConn(server.(*net.UnixConn)); err == nil {
		t.Errorf("of a closed connection: %+v", peer)
	}
}

func TestOf_NoUnixSocket(t *testing.T) {
	pipe, _, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close() }()
	if peer, err := peerOf(int(pipe.Fd())); err == nil {
		t.Errorf("of a pipe: %+v", peer)
	}
}
