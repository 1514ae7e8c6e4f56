package status

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// connect opens connections to an address until the test ends and sends text on each. in calls a
// function as the user, or on the host, that owns the connections.
func connect(t *testing.T, in func(func()), count int, address, text string) {
	t.Helper()
	for range count {
		var c net.Conn
		var err error
		in(func() { c, err = net.Dial("tcp", address) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = io.WriteString(c, text)
	}
}

// asked requests a URL and fails the test if the answer is not 200 within a generous timeout.
func asked(t *testing.T, in func(func()), who, url string) {
	t.Helper()
	began := time.Now()
	var response *http.Response
	var err error
	dial := func(_ context.Context, network, address string) (c net.Conn, err error) {
		in(func() { c, err = net.Dial(network, address) })
		return c, err
	}
	limited := http.Client{Timeout: 15 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	if response, err = limited.Get(url); err != nil {
		t.Errorf("%s: %v", who, err)
		return
	}
	_ = response.Body.Close()
	t.Logf("%s: %d after %s", who, response.StatusCode,
		time.Since(began).Round(100*time.Microsecond))
	if response.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", who, response.Status)
	}
}

func here(do func()) { do() }

func nobody(t *testing.T) func(func()) {
	return func(do func()) { parts.RunAs(t, parts.NobodyUID, do) }
}

const wholeRequest = "GET /healthz/ready HTTP/1.1\r\nHost: x\r\n\r\n"

func TestConnections_OneHostOrUserCannotTakeAll(t *testing.T) {
	other, second := parts.NewOtherHost(t), parts.NewOtherHost(t)
	from := func(h *parts.OtherHost) func(func()) { return func(do func()) { h.RunOn(t, do) } }
	for _, test := range []struct {
		count int
		text  string
	}{{256, wholeRequest}, {1000, wholeRequest}, {1000, "GET /healthz"}, {1000, ""}} {
		t.Run(fmt.Sprintf("%d connections of %q", test.count, test.text), func(t *testing.T) {
			server, _ := startServer(t, Options{Address: "0.0.0.0:0", TrustedUIDs: []uint32{0}})
			_, port, _ := net.SplitHostPort(server.ListenAddress())
			remote, loopback := net.JoinHostPort(other.Peer, port),
				net.JoinHostPort("127.0.0.1", port)
			connect(t, from(other), test.count, remote, test.text)
			connect(t, nobody(t), test.count, loopback, test.text)
			asked(t, from(other), "the same host", "http://"+remote+"/healthz/ready")
			asked(t, from(second), "another host", "http://"+net.JoinHostPort(second.Peer,
				port)+"/healthz/ready")
			asked(t, nobody(t), "the same user", "http://"+loopback+"/healthz/ready")
			asked(t, here, "root", "http://"+loopback+"/healthz/ready")
			asked(t, here, "root, by another address", "http://"+remote+"/healthz/ready")
			if got := server.ConnectionStats(); got.Refused != 0 ||
				got.Evicted < uint64(2*test.count-64) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A connection with a request in progress is not evicted. When a user has too many of them, further
// connections of this user are refused, and those of other users are accepted.
func TestConnections_BusyOnesKeepOutTheirUserOnly(t *testing.T) {
	hold := make(chan struct{})
	envoy := &proxy{}
	envoy.set(roundTripper(func(r *http.Request) (*http.Response, error) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		return nil, io.ErrUnexpectedEOF
	}), 0, "")
	view := NewAdminView(AdminViewOptions{Epochs: &epochs{},
		Config: AdminViewConfig{Port: parts.FreePort(t)}, Proxy: envoy,
		TrustedUIDs: []uint32{0}, Conditions: condition.NewRegistry(), Logger: discard()})
	runPart(t, view.Run)
	defer close(hold)
	<-view.Ready()
	eventually(t, "those beyond the limit are refused", func() bool {
		connect(t, nobody(t), localLimits.PerKey, view.ListenAddress(),
			"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
		return view.ConnectionStats().Refused > 0
	})
	var c net.Conn
	var err error
	parts.RunAs(t, 12345, func() { c, err = net.Dial("tcp", view.ListenAddress()) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "GET /quitquitquit HTTP/1.1\r\nHost: localhost\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(15 * time.Second))
	text := make([]byte, 64)
	if n, err := c.Read(text); err != nil || !strings.HasPrefix(string(text[:n]), "HTTP/1.1 403") {
		t.Errorf("another user: %s, %v", text[:n], err)
	}
}
