package status

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

func TestReadinessSaysWhyNot(t *testing.T) {
	for _, test := range []struct {
		readiness readiness
		code      int
		body      string
	}{
		{"", 200, "ready\n"},
		{"epoch 0 is starting", 503, "epoch 0 is starting\n"},
	} {
		_, url := startServer(t, Options{Readiness: test.readiness})
		if code, body, _ := ask(t, "GET", url+"/healthz/ready"); code != test.code ||
			body != test.body {
			t.Errorf("%q: %d %q", test.readiness, code, body)
		}
	}
}

// controls counts the requests.
type controls struct {
	drains, quits int
	err           error
}

func (c *controls) BeginDrain(context.Context) error { c.drains++; return c.err }
func (c *controls) Quit(context.Context) error       { c.quits++; return c.err }

func TestControlOnlyWhereItIsAllowed(t *testing.T) {
	tests := []struct {
		name, method, path, peer, origin string
		host                             string
		allowed                          bool
		err                              error
		code                             int
		says                             string
		drains, quits                    int
	}{
		{name: "drain", method: "POST", path: "/drain", peer: "127.0.0.1:5", allowed: true,
			code: 200, says: "OK", drains: 1},
		{name: "quit", method: "POST", path: "/quitquitquit", peer: "[::1]:5", allowed: true,
			code: 200, says: "OK", quits: 1},
		{name: "IPv4 in IPv6", method: "POST", path: "/quitquitquit", peer: "[::ffff:127.0.0.1]:5",
			allowed: true, code: 200, says: "OK", quits: 1},
		{name: "GET", method: "GET", path: "/quitquitquit", peer: "127.0.0.1:5", allowed: true,
			code: 405, says: "POST only"},
		{name: "from elsewhere", method: "POST", path: "/quitquitquit", peer: "10.0.0.1:5",
			allowed: true, code: 403, says: "from this host only"},
		{name: "a page in a browser", method: "POST", path: "/drain", peer: "127.0.0.1:5",
			origin: "http://x", allowed: true, code: 403, says: "from this host only"},
		{name: "another site's name", method: "POST", path: "/quitquitquit", peer: "127.0.0.1:5",
			host: "evil.test:15020", allowed: true, code: 403,
			says: `refused for the host "evil.test:15020"`},
		{name: "probes are asked for by any name", method: "GET", path: "/healthz/ready",
			peer: "127.0.0.1:5", host: "web.test", code: 200, says: "ready"},
		{name: "off", method: "POST", path: "/drain", peer: "127.0.0.1:5", code: 403,
			says: `control = "loopback" in [status]`},
		{name: "failed", method: "POST", path: "/drain", peer: "127.0.0.1:5", allowed: true,
			err: errors.New("no epoch is live"), code: 500, says: "no epoch is live", drains: 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			control := &controls{err: test.err}
			server := NewServer(Options{Config: Config{ProxyControlAllowed: test.allowed},
				DrainController: control,
				Readiness:       readiness(""), Logger: discard(), Conditions: condition.NewRegistry()})
			request := httptest.NewRequest(test.method, test.path, nil)
			request.RemoteAddr, request.Host = test.peer, "127.0.0.1:15020"
			if test.host != "" {
				request.Host = test.host
			}
			if test.origin != "" {
				request.Header.Set("Origin", test.origin)
			}
			answer := httptest.NewRecorder()
			server.routes().ServeHTTP(answer, request)
			if answer.Code != test.code || !strings.Contains(answer.Body.String(), test.says) {
				t.Errorf("%d %s", answer.Code, answer.Body)
			}
			if control.drains != test.drains || control.quits != test.quits {
				t.Errorf("%d drains, %d quits", control.drains, control.quits)
			}
		})
	}
}

func TestControlFollowsTheConfiguration(t *testing.T) {
	control := &controls{}
	server, url := startServer(t, Options{DrainController: control})
	if code, _, _ := ask(t, "POST", url+"/drain"); code != 403 {
		t.Errorf("off: %d", code)
	}
	server.Configure(Config{ProxyControlAllowed: true})
	if code, _, _ := ask(t, "POST", url+"/drain"); code != 200 || control.drains != 1 {
		t.Errorf("on: %d", code)
	}
}

func TestAnAddressThatIsTakenIsToldAndHadLater(t *testing.T) {
	reserved, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	board := condition.NewRegistry()
	server := NewServer(Options{Address: reserved.Addr().String(), Readiness: readiness(""),
		Conditions: board, Logger: discard()})
	runPart(t, server.Run)
	<-server.Ready()
	all := board.Conditions()
	if len(all) != 1 || all[0].Code != conditionStatus || !strings.Contains(all[0].Sentence,
		reserved.Addr().String()) {
		t.Fatalf("conditions: %+v", all)
	}
	_ = reserved.Close()
	eventually(t, "it listens", func() bool { return server.ListenAddress() != "" })
	if code, _, _ := ask(t, http.MethodGet,
		"http://"+server.ListenAddress()+"/healthz/ready"); code != 200 {
		t.Errorf("%d", code)
	}
	if all := board.Conditions(); len(all) != 0 {
		t.Errorf("conditions: %+v", all)
	}
}
