package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// accepted returns both ends of a TCP connection whose client socket the user uid created.
func accepted(t *testing.T, uid int, listen, dial string) (server, client net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	parts.RunAs(t, uid, func() { client, err = net.Dial("tcp", net.JoinHostPort(dial, port)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server, client
}

func userOf(server net.Conn) (uint32, error) {
	end := func(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
	return CreatorUID(end(server.RemoteAddr()), end(server.LocalAddr()))
}

func TestUser(t *testing.T) {
	for _, test := range []struct {
		name, listen, dial string
		uid                int
	}{
		{"IPv4", "127.0.0.1:0", "127.0.0.1", parts.NobodyUID},
		{"IPv4 of root", "127.0.0.1:0", "127.0.0.7", 0},
		{"IPv6", "[::1]:0", "::1", 12345},
		{"IPv4 in IPv6", "[::]:0", "127.0.0.1", parts.NobodyUID},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.dial == "127.0.0.7" {
				test.listen = "0.0.0.0:0"
			}
			server, _ := accepted(t, test.uid, test.listen, test.dial)
			if uid, err := userOf(server); err != nil || uid != uint32(test.uid) {
				t.Errorf("user %d, %v", uid, err)
			}
		})
	}
}

// For a closed socket the kernel reports user 0. The result must be an error, not root.
func TestUser_OfClosedSocketIsUnknown(t *testing.T) {
	server, client := accepted(t, parts.NobodyUID, "127.0.0.1:0", "127.0.0.1")
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if uid, err := userOf(server); err == nil {
		t.Errorf("user %d", uid)
	}
	_ = server.Close()
	if uid, err := userOf(server); err == nil {
		t.Errorf("user %d of a connection that is no more", uid)
	}
}

func TestUser_OfNoConnectionIsAnError(t *testing.T) {
	if _, err := CreatorUID(netip.MustParseAddrPort("127.0.0.1:1"),
		netip.MustParseAddrPort("127.0.0.1:2")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
}
