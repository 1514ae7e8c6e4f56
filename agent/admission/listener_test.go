package admission

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const refusal = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

// serve runs an http.Server behind a Listener with one pool until the test ends. It responds to
// /hold only when the test ends.
func serve(t *testing.T, limits Limits) (string, *Pool) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pool := NewPool(limits)
	ending := make(chan struct{})
	server := &http.Server{ConnState: ConnState, ConnContext: ConnContext,
		Handler: abortEvicted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hold" {
				_ = http.NewResponseController(w).Flush()
				<-ending
			}
			_, _ = io.WriteString(w, "done")
		}))}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(NewListener(inner, Options{RefusalResponse: []byte(refusal),
			Admit: func(c net.Conn) (*Pool, ClientKey) { return pool, KeyOfTCP(c) }}))
	}()
	t.Cleanup(func() {
		close(ending)
		_ = server.Close()
		<-ended
	})
	return inner.Addr().String(), pool
}

// dialAs connects as a user and sends text.
func dialAs(t *testing.T, uid int, address, text string) (c net.Conn) {
	t.Helper()
	var err error
	parts.RunAs(t, uid, func() { c, err = net.Dial("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, text)
	return c
}

// answer returns the first bytes of the response.
func answer(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	text := make([]byte, 12)
	n, err := io.ReadFull(c, text)
	if err != nil {
		return string(text[:n]) + err.Error()
	}
	return string(text)
}

func TestListener_IdleConnectionsGiveWayWithinTheirUser(t *testing.T) {
	for name, text := range map[string]string{"silent": "",
		"half a request": "GET / HTTP/1.1\r\nHost:"} {
		t.Run(name, func(t *testing.T) {
			address, pool := serve(t, Limits{Total: 20, PerKey: 8})
			kept := dialAs(t, 0, address, "")
			for range 100 {
				dialAs(t, parts.NobodyUID, address, text)
			}
			for _, uid := range []int{parts.NobodyUID, 0} {
				if got := answer(t, dialAs(t, uid, address,
					"GET / HTTP/1.1\r\nHost: x\r\n\r\n")); got != "HTTP/1.1 200" {
					t.Errorf("user %d: %s", uid, got)
				}
			}
			_, _ = io.WriteString(kept, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if got := answer(t, kept); got != "HTTP/1.1 200" {
				t.Errorf("an idle connection of root: %s", got)
			}
			if stats := pool.Stats(); stats != (Stats{Evicted: 93}) {
				t.Errorf("%+v", stats)
			}
		})
	}
}

func TestListener_BusyConnectionsStay(t *testing.T) {
	address, pool := serve(t, Limits{Total: 20, PerKey: 8})
	const hold = "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n"
	for range 8 {
		if got := answer(t, dialAs(t, parts.NobodyUID, address, hold)); got != "HTTP/1.1 200" {
			t.Fatal(got)
		}
	}
	// The listener refuses this connection before it reads a request. An unread request would make
	// the kernel reset the connection, so the client sends none.
	if got := answer(t, dialAs(t, parts.NobodyUID, address, "")); got != "HTTP/1.1 503" {
		t.Errorf("one more: %s", got)
	}
	if got := answer(t,
		dialAs(t, 0, address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")); got != "HTTP/1.1 200" {
		t.Errorf("another user: %s", got)
	}
	if stats := pool.Stats(); stats != (Stats{Refused: 1}) {
		t.Errorf("%+v", stats)
	}
}

// A request whose connection was evicted before it was fully read must not be executed.
func TestHandler_AbortsRequestsOfEvictedConnections(t *testing.T) {
	pool := NewPool(Limits{Total: 1, PerKey: 1})
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	slot, _ := pool.Acquire(KeyOfUser(1), func() {})
	slot.SetIdle()
	c := &Conn{Conn: here, Key: KeyOfUser(1), slot: slot}
	called := false
	handler := abortEvicted(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		called = true
	}))
	request, _ := http.NewRequestWithContext(ConnContext(t.Context(), c), http.MethodPost,
		"/drain", nil)
	handler.ServeHTTP(nil, request)
	if !called {
		t.Error("a request of an admitted connection was not handled")
	}
	if _, ok := pool.Acquire(KeyOfUser(1), func() {}); !ok {
		t.Fatal("the idle connection was not evicted")
	}
	called = false
	defer func() {
		if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) || called {
			t.Errorf("%v, called %v", err, called)
		}
	}()
	handler.ServeHTTP(nil, request)
}

// addressed is a net.Conn with fixed addresses.
type addressed struct {
	net.Conn
	local, remote string
}

func (a addressed) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.local))
}
func (a addressed) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.remote))
}

func TestKeyOfTCP(t *testing.T) {
	for _, test := range []struct{ local, remote, network string }{
		{"10.0.0.1:80", "10.0.0.2:5000", "10.0.0.2/32"},
		{"[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.2]:5000", "10.0.0.2/32"},
		{"[2001:db8::1]:80", "[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"},
		{"[fe80::1%1]:80", "[fe80::2%1]:5000", "fe80::/64"},
		{"10.0.0.1:80", "10.0.0.1:5000", ""},
		{"127.0.0.1:80", "127.0.0.9:5000", ""},
	} {
		key := KeyOfTCP(addressed{local: test.local, remote: test.remote})
		switch {
		case key.Local() != (test.network == ""),
			!key.Local() && key.Network.String() != test.network:
			t.Errorf("%s: %v", test.remote, key)
		// the addresses belong to no socket, so the kernel reports no user
		case key.Local() && key.UID != UnknownUser:
			t.Errorf("%s: user %d", test.remote, key.UID)
		}
	}
	if key := KeyOfTCP(addressed{local: "0.0.0.0:0", remote: "[::]:0"}); !strings.HasPrefix(
		key.Network.String(), "::/") {
		t.Errorf("%v", key)
	}
}
