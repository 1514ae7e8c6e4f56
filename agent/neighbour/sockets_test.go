package neighbour

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:3A98 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 1 1 0 100 0 0 10 0
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100007F:9C40 0100007F:3A98 01 00000000:00000000 00:00000000 00000000   998        0 3 1 0 100 0 0 10 0
   3: 00000000000000000000000001000000:3A99 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 997 0 4
   4: 0000000000000000FFFF00000200007F:3A9A 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 7 0 4
nonsense
   5: 0100007F 00000000:0000 0A 00000000:00000000 00:00000000 00000000 998 0 1
`

func TestListening(t *testing.T) {
	got, err := listening(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	socket := func(address string, uid int, inode uint32) Socket {
		return Socket{Address: netip.MustParseAddrPort(address), UID: uid, Inode: inode}
	}
	want := []Socket{socket("127.0.0.1:15000", 998, 1), socket("0.0.0.0:80", 0, 2), socket("[::1]:15001", 997, 4), socket("127.0.0.2:15002", 7, 4)}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestSocketsOfTheKernel(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		for name, ask := range map[string]func() ([]Socket, error){"netlink": netlink, "tables": tables, "both": Sockets} {
			sockets, err := ask()
			if err != nil {
				t.Fatal(name, err)
			}
			found := false
			for _, s := range sockets {
				found = found || s.Address.String() == listener.Addr().String() && s.UID == os.Geteuid()
			}
			if !found {
				t.Errorf("%s: %s is not among %v", name, listener.Addr(), sockets)
			}
		}
	}
}

func FuzzListening(f *testing.F) {
	f.Add(table)
	f.Fuzz(func(t *testing.T, text string) {
		sockets, err := listening(strings.NewReader(text))
		if err != nil {
			return // a line that is too long
		}
		for _, s := range sockets {
			if !s.Address.IsValid() || s.UID < 0 {
				t.Errorf("%+v of %q", s, text)
			}
		}
	})
}
